// The API key, where the server asks for one: in memory and in this tab, nowhere else.
import { find, part } from "./elements.js";

const REMEMBERED = "vitrail-key";
let key = stored();
let asking = null;

function stored() {
  try {
    return sessionStorage.getItem(REMEMBERED) ?? "";
  } catch {
    return "";
  }
}

function store(value) {
  key = value;
  try {
    if (value) sessionStorage.setItem(REMEMBERED, value);
    else sessionStorage.removeItem(REMEMBERED);
  } catch {
    // Then it lives as long as the page.
  }
}

export const knownKey = () => key;

/** Drop a key the server refused, unless a newer one has taken its place. */
export function forgetKey(refused) {
  if (refused === key) store("");
}

/** Ask the person, once for all requests that wait for it. */
export function askForKey(wasWrong) {
  if (key) return Promise.resolve();
  asking ??= new Promise((resolve) => {
    const dialog = find("key"),
      field = part(dialog, "value");
    part(dialog, "wrong").hidden = !wasWrong;
    field.value = "";
    const close = () => {
      if (!field.value.trim()) return dialog.showModal();
      store(field.value.trim());
      field.value = "";
      dialog.removeEventListener("close", close);
      asking = null;
      return resolve();
    };
    dialog.addEventListener("close", close);
    dialog.showModal();
    field.focus();
  });
  return asking;
}
