// The page's words in the person's language.
import english from "./en.js";
import chinese from "./zh.js";

const LANGUAGES = { en: english, zh: chinese };
const REMEMBERED = "vitrail-language";
let current = "en";

/** A sentence by its key, with {names} filled in. */
export function say(key, values = {}) {
  const sentence = LANGUAGES[current][key];
  console.assert(sentence !== undefined, `no words for ${key}`);
  return (sentence ?? key).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** A number as the language writes it. */
export const number = (value, options = {}) => new Intl.NumberFormat(current, options).format(value);

/** A fraction as per cent, with a digit more where it is small. */
export const percent = (share) =>
  number(share, { style: "percent", maximumFractionDigits: share > 0 && share < 0.1 ? 1 : 0 });

/** A count in few digits: 5.7M, 572万. */
export const count = (value) => number(value, { notation: "compact", maximumFractionDigits: 1 });

/** Call `change` now and whenever the language changes, until the function that comes back is called. */
export function inWords(change) {
  document.addEventListener("vitrail-language", change);
  change();
  return () => document.removeEventListener("vitrail-language", change);
}

/** Fill in what is marked in the HTML: data-words is the text, data-words-label the accessible name. */
export function translate(root = document) {
  for (const element of root.querySelectorAll("[data-words]")) element.textContent = say(element.dataset.words);
  for (const element of root.querySelectorAll("[data-words-label]")) {
    element.setAttribute("aria-label", say(element.dataset.wordsLabel));
  }
}

function speak(language) {
  current = language;
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  document.title = say("title");
  translate();
  for (const button of document.querySelectorAll("[data-language]")) {
    button.setAttribute("aria-pressed", String(button.dataset.language === language));
  }
  document.dispatchEvent(new Event("vitrail-language"));
}

/** The language chosen here before, else the first of the browser's that we have. */
function preferred() {
  const wished = [recall(REMEMBERED), ...(navigator.languages ?? [navigator.language])];
  for (const each of wished) {
    const language = String(each ?? "")
      .slice(0, 2)
      .toLowerCase();
    if (language in LANGUAGES) return language;
  }
  return "en";
}

/** Storage may be forbidden; then the choice lasts as long as the page. */
export function recall(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Nothing is lost but the memory of it.
  }
}

export function startWords() {
  for (const button of document.querySelectorAll("[data-language]")) {
    button.addEventListener("click", () => {
      remember(REMEMBERED, button.dataset.language);
      speak(button.dataset.language);
    });
  }
  speak(preferred());
}
