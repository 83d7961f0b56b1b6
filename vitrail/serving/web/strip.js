// Small multiples: one little map for each layer or head, each a button.
import { paintMap } from "./colours.js";
import { make } from "./elements.js";

export class Strip {
  constructor(root, choose) {
    this.root = root;
    this.choose = choose;
    this.buttons = [];
  }

  resize(count) {
    if (this.buttons.length === count) return;
    this.buttons = Array.from({ length: count }, (_, place) => {
      const button = make(
        "button",
        { type: "button", "aria-pressed": "false" },
        make("canvas", { "aria-hidden": "true" }),
        make("span", {}, String(place + 1)),
      );
      button.addEventListener("click", () => this.choose(place));
      return button;
    });
    this.root.replaceChildren(...this.buttons);
  }

  /** maps: a list of levels, one a button. */
  draw(maps, grid, chosen, nameOf) {
    this.resize(maps.length);
    this.buttons.forEach((button, place) => {
      paintMap(button.firstChild, maps[place], grid);
      button.setAttribute("aria-pressed", String(place === chosen));
      button.setAttribute("aria-label", nameOf(place + 1));
    });
  }
}
