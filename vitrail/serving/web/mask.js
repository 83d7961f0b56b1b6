// The class of every pixel, laid over the photo: how much of it shows, and which class is under the pointer.
import { announce, stepOf } from "./elements.js";
import { say } from "./words.js";

/** Pixels along the longer side of what is drawn; the mask itself keeps the photo's own. */
const DRAWN = 1024;
/** How many steps of the arrow keys lead across the photo. */
const STEPS = 24;
/** The height of the photo on the page, at most, in rem. */
const HIGHEST = 26;
const NONE = 255;

/** The lengths of runs out of COCO's text: groups of five bits, each length as the difference from that two before. */
export function runLengths(text) {
  const lengths = [];
  let place = 0;
  while (place < text.length) {
    let value = 0,
      unit = 1,
      group = 0;
    do {
      group = text.charCodeAt(place) - 48;
      value += (group & 31) * unit;
      unit *= 32;
      place += 1;
    } while (group & 32 && place < text.length);
    if (group & 16) value -= unit;
    lengths.push(lengths.length > 2 ? value + lengths[lengths.length - 2] : value);
  }
  return lengths;
}

/** The number of each pixel's class, row by row; 255 for none. mask: run lengths by class, down the columns. */
export function classNumbers(mask, [rows, columns], labels) {
  const numbers = new Uint8Array(rows * columns).fill(NONE);
  for (const [label, { counts }] of Object.entries(mask)) {
    const number = labels.indexOf(label);
    let place = 0;
    runLengths(counts).forEach((length, run) => {
      const end = place + length;
      if (run % 2 === 1) {
        for (; place < end; place += 1) numbers[(place % rows) * columns + Math.floor(place / rows)] = number;
      }
      place = end;
    });
  }
  return numbers;
}

const bytesOf = (colour) => [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));

export class MaskView {
  /** heard: {point(words, class number or null)}: what is under the pointer. */
  constructor(canvas, heard) {
    this.canvas = canvas;
    this.heard = heard;
    this.opacity = 0.6;
    this.close();
    canvas.addEventListener("pointermove", (event) => this.under(event));
    canvas.addEventListener("pointerdown", (event) => this.under(event));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  close() {
    Object.assign(this, { numbers: null, photo: null, place: null, chosen: null });
  }

  /** answer: {mask, size}; legend: [{label, description, colour}]; photo: what the browser can show, or null. */
  open({ mask, size }, legend, photo) {
    const labels = legend.map(({ label }) => label);
    Object.assign(this, { size, legend, photo, place: null, chosen: null });
    this.numbers = classNumbers(mask, size, labels);
    this.colours = legend.map(({ colour }) => bytesOf(colour));
    const scale = Math.min(1, DRAWN / Math.max(...size)),
      [height, width] = size.map((side) => Math.max(1, Math.round(side * scale)));
    Object.assign(this.canvas, { width, height });
    this.canvas.style.width = `min(100%, ${(HIGHEST * width) / height}rem)`;
    this.layer = document.createElement("canvas");
    Object.assign(this.layer, { width, height });
    this.draw();
  }

  show(opacity) {
    this.opacity = opacity;
    this.draw();
  }

  under(event) {
    const { canvas } = this,
      box = canvas.getBoundingClientRect(); // with the border, which is no part of the photo
    const down = event.clientY - box.top - canvas.clientTop,
      right = event.clientX - box.left - canvas.clientLeft;
    this.point([down / canvas.clientHeight, right / canvas.clientWidth]);
  }

  pressed(event) {
    const step = stepOf(event);
    if (event.key === "Escape") this.point(null);
    if (!step || !this.numbers) return;
    event.preventDefault();
    const [down, right] = this.place ?? [0.5, 0.5],
      inside = (place) => Math.min(0.999, Math.max(0, place));
    const moved = this.place ? [inside(down + step[0] / STEPS), inside(right + step[1] / STEPS)] : [down, right];
    this.point(moved, true);
  }

  /** Ask about a place, down and right from 0 to 1; null for none. */
  point(place, byKey = false) {
    if (!this.numbers) return;
    const before = this.chosen,
      marked = this.place && this.marked;
    Object.assign(this, { place, marked: byKey, chosen: place && this.classAt(place) });
    const words = this.words();
    this.heard.point(words, this.chosen === NONE ? null : this.chosen);
    if (byKey) announce(words);
    if (before !== this.chosen || byKey || marked) this.draw();
  }

  cell([down, right]) {
    const [rows, columns] = this.size;
    const [row, column] = [Math.floor(down * rows), Math.floor(right * columns)];
    return [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
  }

  classAt(place) {
    const [row, column] = this.cell(place);
    return this.numbers[row * this.size[1] + column];
  }

  words() {
    if (!this.place) return say("mask.hint");
    const [row, column] = this.cell(this.place),
      entry = this.legend[this.chosen];
    const label = entry ? entry.description || entry.label : say("mask.none");
    return say("mask.readout", { label, row: row + 1, column: column + 1 });
  }

  draw() {
    if (!this.numbers) return;
    const { width, height } = this.canvas,
      pen = this.canvas.getContext("2d");
    pen.fillStyle = "#0b0c12";
    pen.fillRect(0, 0, width, height);
    pen.imageSmoothingQuality = "high";
    if (this.photo) pen.drawImage(this.photo, 0, 0, width, height);
    this.layer.getContext("2d").putImageData(this.painted(width, height), 0, 0);
    pen.drawImage(this.layer, 0, 0);
    if (this.place && this.marked) this.mark(pen, width, height);
  }

  /** The mask in its colours: the class that is pointed at shows most. */
  painted(width, height) {
    const frame = new ImageData(width, height),
      [rows, columns] = this.size;
    for (let y = 0; y < height; y += 1) {
      const start = Math.floor(((y + 0.5) * rows) / height) * columns;
      for (let x = 0; x < width; x += 1) {
        const number = this.numbers[start + Math.floor(((x + 0.5) * columns) / width)],
          colour = this.colours[number];
        if (!colour) continue;
        const pointed = this.chosen !== null && this.chosen !== NONE,
          weight = !pointed ? 1 : number === this.chosen ? 1.25 : 0.45;
        frame.data.set([...colour, Math.round(255 * Math.min(1, this.opacity * weight))], 4 * (y * width + x));
      }
    }
    return frame;
  }

  mark(pen, width, height) {
    const [y, x] = [this.place[0] * height, this.place[1] * width],
      size = Math.max(width, height) / 50;
    for (const [colour, weight] of [
      ["#0b0c12", 5],
      ["#fff", 2],
    ]) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: (weight * Math.max(width, height)) / 500 });
      pen.beginPath();
      pen.arc(x, y, size, 0, 2 * Math.PI);
      pen.stroke();
    }
  }
}
