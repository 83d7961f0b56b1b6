// The classes a model thinks of, as bars.
import { make } from "./elements.js";
import { percent, say } from "./words.js";

/** A label in words, where the model has them for its codes. */
export const named = ({ label, description }) => description || label;

export function drawBars(list, top) {
  if (!top.length) {
    list.replaceChildren(make("li", { class: "soft" }, say("answer.none")));
    return;
  }
  list.replaceChildren(
    ...top.map((guess) => {
      const fill = make("span", { class: "bar-fill" });
      fill.style.width = `${Math.max(0.4, 100 * guess.score)}%`;
      return make(
        "li",
        {},
        make("span", { class: "bar-name", title: guess.label }, make("bdi", {}, named(guess))),
        make("span", { class: "bar-score" }, percent(guess.score)),
        make("span", { class: "bar-track", "aria-hidden": "true" }, fill),
      );
    }),
  );
}
