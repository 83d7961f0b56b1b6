// What the page asks of the server, and what can go wrong, as a Problem with words for it.
import { askForKey, forgetKey, knownKey } from "./key.js";

const MOST_RETRIES = 4;

/** Something the person should be told: `code` names the words, `detail` is what the server added. */
export class Problem extends Error {
  constructor(code, { detail = "", retryAfter = 0 } = {}) {
    super(code);
    this.code = code;
    this.detail = detail;
    this.retryAfter = retryAfter;
  }
}

const CODES = {
  400: "not_image",
  408: "slow",
  413: "too_large",
  415: "not_image",
  422: "not_image",
  429: "busy",
  503: "busy",
  504: "slow",
};

async function problemOf(response) {
  let detail = "";
  try {
    detail = String((await response.json()).error.message);
  } catch {
    // An answer that is not ours, from something in between: its status must do.
  }
  const retryAfter = Number(response.headers.get("Retry-After")) || 1;
  return new Problem(CODES[response.status] ?? "failed", { detail, retryAfter });
}

async function once(address, options) {
  for (;;) {
    const key = knownKey();
    const headers = { Accept: "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
    if (options.body) headers["Content-Type"] = "application/octet-stream";
    let response;
    try {
      response = await fetch(address, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("offline");
    }
    if (response.ok) {
      try {
        return await response.json();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Problem("offline");
      }
    }
    if (response.status !== 401) throw await problemOf(response);
    forgetKey(key);
    await askForKey(Boolean(key));
  }
}

/** Ask; a busy server is asked again when it said to, a few times. `waiting` hears for how many seconds. */
async function ask(address, { waiting = () => {}, ...options } = {}) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await once(address, options);
    } catch (error) {
      if (error.code !== "busy" || attempt === MOST_RETRIES) throw error;
      const seconds = Math.min(10, error.retryAfter);
      waiting(seconds);
      await pause(1000 * seconds, options.signal);
    }
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

const named = (model) => encodeURIComponent(model);

export const models = (options) => ask("/model", options);

/** What a model says of a picture, as its task has it: {top, labels or values, milliseconds}. */
export async function predict(model, picture, options) {
  const address = `/predict?model=${named(model)}&top=5`;
  const answer = await ask(address, { ...options, method: "POST", body: picture });
  const [{ error, ...said }] = answer.predictions;
  if (error) throw new Problem("not_image", { detail: error.message ?? String(error) });
  return { ...said, milliseconds: answer.milliseconds };
}

export const attention = (model, picture, options) =>
  ask(`/attention/map?model=${named(model)}`, { ...options, method: "POST", body: picture });

export const positions = (model, options) => ask(`/model/${named(model)}/positions`, options);
