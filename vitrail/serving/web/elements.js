// Small helpers for the page's elements. Text only ever goes in as text, never as HTML.

/** The element of this id. */
export const find = (id) => document.getElementById(id);

/** The part of a dialog, panel or notice that is called so. */
export const part = (root, name) => root.querySelector(`[data-part="${name}"]`);

/** An element with properties and children; `class` and names with a dash become attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class" || name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A piece of a drawing. */
export function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** For assistive technology: said once, when the person has acted and not at every move of a mouse. */
export function announce(text) {
  find("announce").textContent = text;
}

/** Which of `count` stretches of a length a point lies in. */
export const cellAt = (offset, length, count) =>
  Math.min(count - 1, Math.max(0, Math.floor((offset / length) * count)));

/** The cell of a grid under the pointer, counted row by row. */
export function cellUnder(event, canvas, [rows, columns]) {
  const box = canvas.getBoundingClientRect();
  return (
    cellAt(event.clientY - box.top, box.height, rows) * columns + cellAt(event.clientX - box.left, box.width, columns)
  );
}

const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The step (rows, columns) an arrow key stands for; undefined for other keys. */
export const stepOf = (event) => (event.ctrlKey || event.metaKey || event.altKey ? undefined : MOVES[event.key]);

/** The cell one step further, staying on the grid; from nowhere the first step leads to the middle. */
export function neighbour(cell, [down, right], [rows, columns]) {
  if (cell === null) return Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const row = Math.min(rows - 1, Math.max(0, Math.floor(cell / columns) + down));
  return row * columns + Math.min(columns - 1, Math.max(0, (cell % columns) + right));
}
