// What a model says, a line each: classes or labels with bars, or numbers.
import { make } from "./elements.js";
import { number, percent, say } from "./words.js";

/** A label in words, where the model has them for its codes. */
const named = ({ label, description }) => description || label;

/** The words for an answer without a line: labels may all be too unlikely. */
export const nothing = ({ labels }) => (labels ? "answer.unlikely" : "answer.none");

/** The lines of an answer: {name, title, text}, and of classes and labels a share from 0 to 1. */
export function lines({ top, labels, values }) {
  if (top || labels) {
    const line = ({ score: share, ...guess }) => ({ name: named(guess), title: guess.label, text: percent(share), share });
    return (top ?? labels).map(line);
  }
  return Object.entries(values).map(([name, value]) => ({
    name,
    title: name,
    text: number(value, { maximumSignificantDigits: 6 }),
  }));
}

export function drawBars(list, said, none = "answer.none") {
  if (!said.length) {
    list.replaceChildren(make("li", { class: "soft" }, say(none)));
    return;
  }
  list.replaceChildren(
    ...said.map(({ name, title, text, share }) => {
      const parts = [
        make("span", { class: "bar-name", title }, make("bdi", {}, name)),
        make("span", { class: "bar-score" }, text),
      ];
      if (share === undefined) return make("li", {}, ...parts);
      const fill = make("span", { class: "bar-fill" });
      fill.style.width = `${Math.max(0.4, 100 * share)}%`;
      return make("li", {}, ...parts, make("span", { class: "bar-track", "aria-hidden": "true" }, fill));
    }),
  );
}
