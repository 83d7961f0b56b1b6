// What a model says, a line each: classes or labels with bars, or numbers.
import { make } from "./elements.js";
import { number, percent, say } from "./words.js";

/** A label in words, where the model has them for its codes. */
const named = ({ label, description }) => description || label;

/** The words for an answer without a line: labels may all be too unlikely. */
export const nothing = ({ labels, shares }) =>
  labels ? "answer.unlikely" : shares ? "answer.no_pixels" : "answer.none";

/** The classes in a picture, the largest first, each with the colour of its pixels. */
function inPicture(shares, legend) {
  const found = legend.filter(({ label }) => label in shares);
  found.sort((one, other) => shares[other.label] - shares[one.label]);
  return found.map((entry) => ({
    name: named(entry),
    title: entry.label,
    text: percent(shares[entry.label]),
    share: shares[entry.label],
    colour: entry.colour,
  }));
}

/**
 * The lines of an answer: {name, title, text}, of classes and labels a share from 0 to 1, and a colour for those that
 * are drawn. legend: what the model says of these.
 */
export function lines({ top, labels, values, shares }, legend) {
  if (shares) return inPicture(shares, legend);
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
    ...said.map(({ name, title, text, share, colour }) => {
      const swatch = make("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = colour ?? "";
      const parts = [
        make("span", { class: "bar-name", title }, ...(colour ? [swatch] : []), make("bdi", {}, name)),
        make("span", { class: "bar-score" }, text),
      ];
      if (share === undefined) return make("li", {}, ...parts);
      const fill = make("span", { class: "bar-fill" });
      fill.style.width = `${Math.max(0.4, 100 * share)}%`;
      if (colour) fill.style.background = colour;
      return make("li", colour ? { "data-label": title } : {}, ...parts, make("span", { class: "bar-track", "aria-hidden": "true" }, fill));
    }),
  );
}
