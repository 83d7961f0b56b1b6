// Joins the parts: the picture on one side, one or two models on the other.
import * as api from "./api.js";
import { find, make, part } from "./elements.js";
import { offerExamples, wantsDigits } from "./examples.js";
import { coloursOf, drawWindow } from "./glass.js";
import { prepare, startIntake } from "./intake.js";
import { Panel } from "./panel.js";
import { startTheme } from "./theme.js";
import { inWords, number, say, startWords } from "./words.js";

const notice = find("notice"),
  status = find("status"),
  first = find("first"),
  second = find("second");
let server = { models: [], limits: { max_body_bytes: Infinity, max_pixels: Infinity, formats: [] } };
let current = null; // {picture, preview, note, example: its place in the list, where it is one of ours}
let bandColours = null;
let tryAgain = () => {};
const panels = [];

function tell(words, { detail = "", retry = null } = {}) {
  part(notice, "words").textContent = words;
  part(notice, "detail").textContent = detail;
  part(notice, "retry").hidden = !retry;
  tryAgain = retry ?? (() => {});
  notice.hidden = !words;
}

const AGAIN = ["busy", "slow", "offline", "failed"];

/** What went wrong, in words; a mistake of ours goes to the console as well. */
function trouble(error, retry) {
  const code = error instanceof api.Problem ? error.code : "failed";
  if (!(error instanceof api.Problem)) console.error(error);
  const { max_body_bytes: most, formats } = server.limits;
  const values = { megabytes: number(most / 1e6, { maximumFractionDigits: 1 }), formats: formats.join(", ") };
  status.textContent = "";
  tell(say(`problem.${code}`, values), { detail: error.detail, retry: AGAIN.includes(code) ? retry : null });
}

function drawBand() {
  drawWindow(find("band"), bandColours);
}

function lookAgain() {
  if (!current) return;
  tell("");
  for (const panel of panels) panel.look(current.picture, current.preview);
}

async function choose(blob, example = null) {
  tell("");
  try {
    current = { ...(await prepare(blob, server.limits)), example };
  } catch (error) {
    trouble(error);
    return;
  }
  lookAgain();
}

function addPanel() {
  const panel = new Panel({
    state: (words) => {
      status.textContent = words;
    },
    trouble: (error) => trouble(error, lookAgain),
    done: (picture) => {
      if (panels.some((each) => each !== panel && each.root.hasAttribute("aria-busy"))) return;
      status.textContent = current.note;
      if (!picture) return;
      bandColours = coloursOf(picture);
      drawBand();
    },
    query: (state) => panels.filter((each) => each !== panel).forEach((each) => each.follow(state)),
  });
  panels.push(panel);
  find("panels").append(panel.root);
  return panel;
}

const view = () => ({ look: document.querySelector("input[name=look]:checked").value, lines: find("lines").checked });
const modelCalled = (name) => server.models.find((model) => model.name === name);

/** As many panels as models are chosen; those whose model is new look at the picture, if it stays. */
function arrange(stays = true) {
  const chosen = [first.value, second.value].filter(Boolean).map(modelCalled);
  while (panels.length > chosen.length) panels.pop().close();
  while (panels.length < chosen.length) addPanel();
  find("panels").classList.toggle("two", chosen.length === 2);
  document.body.classList.toggle("wide", chosen.length === 2);
  chosen.forEach((model, place) => {
    const panel = panels[place],
      isNew = panel.model !== model;
    panel.setModel(model);
    panel.setView(view());
    if (isNew && current && stays) panel.look(current.picture, current.preview);
  });
}

function fillModels() {
  const option = (model) => new Option(model.name, model.name);
  first.replaceChildren(...server.models.map(option));
  const none = new Option("", "");
  second.replaceChildren(none, ...server.models.map(option));
  inWords(() => {
    none.textContent = say("compare.none");
  });
  find("second-box").hidden = server.models.length < 2;
  find("choices").hidden = false;
}

function offer() {
  return offerExamples(find("examples"), modelCalled(first.value), choose);
}

async function start() {
  tell("");
  status.textContent = say("status.models");
  try {
    const waiting = (seconds) => {
      status.textContent = say("status.busy", { seconds });
    };
    server = { ...server, ...(await api.models({ waiting })) };
  } catch (error) {
    trouble(error, start);
    return;
  }
  status.textContent = "";
  find("version").textContent = server.version ?? "";
  if (!server.models.length) {
    tell(say("problem.no_models"));
    return;
  }
  fillModels();
  arrange();
  const take = offer();
  if (current) lookAgain();
  else take(0);
}

startWords();
startTheme();
drawBand();
new ResizeObserver(drawBand).observe(find("band"));
part(notice, "retry").addEventListener("click", () => tryAgain());
first.addEventListener("change", () => {
  // A digit says nothing to a model of photos, nor a balloon to one of digits; a person's own picture stays.
  const { example } = current ?? { example: 0 };
  arrange(example === null);
  const take = offer();
  if (example !== null) take(example);
});
second.addEventListener("change", () => arrange());
for (const control of [...document.querySelectorAll("input[name=look]"), find("lines")]) {
  control.addEventListener("change", () => panels.forEach((panel) => panel.setView(view())));
}
startIntake({
  choose: (blob) => choose(blob),
  tell,
  wantsDigits: () => server.models.length > 0 && wantsDigits(panels[0].model),
});
start();
