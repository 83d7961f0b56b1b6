// Light, dark, or as the system says.
import { find } from "./elements.js";
import { recall, remember } from "./words.js";

const REMEMBERED = "vitrail-theme";

export function startTheme() {
  const choice = find("theme");
  const apply = () => {
    if (choice.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
  };
  choice.value = ["light", "dark"].includes(recall(REMEMBERED)) ? recall(REMEMBERED) : "auto";
  choice.addEventListener("change", () => {
    remember(REMEMBERED, choice.value);
    apply();
  });
  apply();
}
