// One model looking at the picture: its answer, its attention, and the figures about it.
import * as api from "./api.js";
import { drawBars, lines, nothing } from "./bars.js";
import { ramp } from "./colours.js";
import { DistanceChart, uniformDistance } from "./distance.js";
import { announce, find, part } from "./elements.js";
import { Maps, levels } from "./maps.js";
import { MaskView } from "./mask.js";
import { PositionMap } from "./positions.js";
import { Stage } from "./stage.js";
import { Strip } from "./strip.js";
import { count, inWords, number, percent, say, translate } from "./words.js";

let panels = 0;

/** The cell of a grid at a place given from 0 to 1. */
const cellOf = ([down, right], [rows, columns]) => Math.floor(down * rows) * columns + Math.floor(right * columns);

export class Panel {
  /** heard: {state(words), trouble(problem), done(picture), query(state)}. */
  constructor(heard) {
    this.heard = heard;
    this.root = find("panel").content.firstElementChild.cloneNode(true);
    this.parts = (name) => part(this.root, name);
    this.number = panels++;
    this.model = null;
    this.maps = null;
    this.answer = null;
    this.state = { mode: "class", layer: 0, head: null, pinned: null, hover: null };
    this.stage = new Stage(this.parts("stage"), {
      hover: (cell) => this.hover(cell),
      pin: (cell) => this.pin(this.state.mode === "patch" && this.state.pinned === cell ? null : cell),
      move: (cell) => this.pin(cell, true),
      release: () => this.pin(null, true),
    });
    this.layers = new Strip(this.parts("layers"), (layer) => this.choose({ layer }));
    this.heads = new Strip(this.parts("heads"), (head) =>
      this.choose({ head: this.state.head === head ? null : head }),
    );
    this.distances = new DistanceChart(this.parts("distance"), {
      choose: (layer, head) => this.choose({ layer, head }),
      tell: (layer, head) => this.tellDistance(layer, head),
    });
    this.mask = new MaskView(this.parts("mask"), { point: (words, number) => this.tellClass(words, number) });
    this.places = new PositionMap(this.parts("positions"), (cell) => this.showPlace(cell));
    this.listen();
    translate(this.root);
    this.stopWords = inWords(() => this.describe());
  }

  listen() {
    const modes = this.parts("modes");
    for (const radio of modes.querySelectorAll("input")) {
      radio.name = `mode-${this.number}`;
      radio.addEventListener("change", () => this.setMode(radio.value));
    }
    this.parts("layer").addEventListener("input", (event) => this.choose({ layer: Number(event.target.value) - 1 }));
    this.parts("head").addEventListener("input", (event) => {
      this.choose({ head: Number(event.target.value) === 0 ? null : Number(event.target.value) - 1 });
    });
    this.parts("opacity").addEventListener("input", () => this.showOpacity());
    const pen = this.parts("ramp").getContext("2d");
    for (let place = 0; place < 128; place += 1) {
      pen.fillStyle = `rgb(${ramp(place / 127).join(" ")})`;
      pen.fillRect(place, 0, 1, 1);
    }
  }

  /** Take a model: what stands about it does not depend on the picture. */
  setModel(model) {
    if (this.model === model) return;
    this.abort?.abort();
    this.model = model;
    this.maps = null;
    this.answer = null;
    this.state = { mode: "class", layer: Infinity, head: null, pinned: null, hover: null };
    this.parts("positions-box").hidden = true;
    this.parts("name").textContent = model.name;
    this.parts("no-attention").hidden = model.attention;
    this.parts("controls").hidden = !model.attention;
    this.parts("deeper").hidden = true;
    this.parts("legend").hidden = true;
    this.parts("bars").replaceChildren();
    this.parts("mask-box").hidden = true;
    this.mask.close();
    this.describe();
    if (model.attention && model.positions) this.loadPositions(model);
  }

  async loadPositions(model) {
    try {
      const answer = await api.positions(model.name);
      if (this.model !== model) return;
      this.places.open(answer);
      this.parts("positions-box").hidden = false;
      this.showPlace(this.places.cell);
    } catch {
      // One figure less; what is wrong with the server shows elsewhere.
    }
  }

  /** Ask the server about a picture. Another picture, or another model, calls this one off. */
  async look(picture, preview) {
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort,
      { model } = this;
    const options = { signal, waiting: (seconds) => this.heard.state(say("status.busy", { seconds })) };
    this.root.setAttribute("aria-busy", "true");
    this.heard.state(say("status.looking", { model: model.name }));
    if (!this.maps) this.stage.preview(preview);
    try {
      const asked = [];
      // Features without a head are served too; there is no class to ask for then.
      if (model.num_classes)
        asked.push(api.predict(model.name, picture, options).then((answer) => this.setAnswer(answer, signal, preview)));
      if (model.attention)
        asked.push(api.attention(model.name, picture, options).then((answer) => this.setMaps(answer, signal)));
      else this.stage.preview(preview);
      await Promise.all(asked);
      if (!signal.aborted) this.heard.done(this.stage.picture);
    } catch (error) {
      if (signal.aborted) return;
      this.abort.abort();
      this.heard.trouble(error);
    } finally {
      if (this.abort.signal === signal) this.root.removeAttribute("aria-busy");
    }
  }

  close() {
    this.abort?.abort();
    this.stopWords();
    this.root.remove();
  }

  setAnswer(answer, signal, photo) {
    if (signal.aborted) return;
    this.answer = answer;
    this.parts("mask-box").hidden = !answer.mask;
    if (answer.mask) this.mask.open(answer, this.model.legend, photo);
    this.describe();
    const [best] = lines(answer, this.model.legend);
    if (best) announce(say("answer.result", { model: this.model.name, label: best.name, score: best.text }));
  }

  async setMaps(answer, signal) {
    const maps = new Maps(answer),
      picture = await createImageBitmap(maps.picture);
    if (signal.aborted) return;
    this.maps = maps;
    this.state.layer = Math.min(this.state.layer, maps.layers - 1);
    if (this.state.head !== null && this.state.head >= maps.heads) this.state.head = null;
    if (this.state.pinned !== null && this.state.pinned >= maps.patches) this.pin(null);
    Object.assign(this.parts("layer"), { max: maps.layers });
    Object.assign(this.parts("head"), { max: maps.heads, disabled: maps.heads === 1 });
    this.parts("heads-box").hidden = maps.heads === 1;
    this.parts("deeper").hidden = false;
    this.stage.open(picture, maps.grid);
    this.describe();
  }

  setView({ look, lines }) {
    Object.assign(this.stage, { look, lines });
    this.parts("legend").hidden = look !== "colour" || !this.maps;
    this.stage.draw();
  }

  setMode(mode) {
    const { state } = this;
    state.mode = mode;
    if (mode === "patch" && state.pinned === null) {
      const [rows, columns] = this.maps.grid;
      state.pinned = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    }
    this.render(true);
    this.share();
  }

  choose(changes) {
    Object.assign(this.state, changes);
    if (this.maps.averaged) this.state.head = null;
    // Rollout has neither layer nor head: choosing one asks about the class token in it.
    if (this.state.mode === "rollout") this.state.mode = "class";
    this.render(true);
  }

  hover(cell) {
    if (!this.maps || cell === this.state.hover) return;
    this.state.hover = cell;
    this.render();
    this.share();
  }

  pin(cell, byKey = false) {
    if (!this.maps) return;
    Object.assign(this.state, {
      pinned: cell,
      hover: byKey ? null : this.state.hover,
      mode: cell === null ? "class" : "patch",
    });
    this.render(byKey);
    this.share();
  }

  /** Which patch is asked about here, for the model beside this one. */
  share() {
    const { hover, pinned, mode } = this.state,
      place = (cell) => (cell === null ? null : this.placeOf(cell));
    this.heard.query({ hover: place(hover), pinned: place(pinned), mode });
  }

  /** A patch's middle, from 0 to 1, so that a model with another grid can find it. */
  placeOf(cell) {
    const [rows, columns] = this.maps.grid;
    return [(Math.floor(cell / columns) + 0.5) / rows, ((cell % columns) + 0.5) / columns];
  }

  /** The other model's question, on this one's grid. */
  follow({ hover, pinned, mode }) {
    if (!this.maps) return;
    const cell = (place) => place && cellOf(place, this.maps.grid);
    Object.assign(this.state, { hover: cell(hover), pinned: cell(pinned), mode });
    this.render();
  }

  /** Everything in words: when the language, the model or the answer changes. */
  describe() {
    const { model, answer } = this;
    if (!model) return;
    const facts = {
      parameters: count(model.parameters),
      rows: model.grid?.[0],
      columns: model.grid?.[1],
      pixels: model.patch_pixels,
      depth: model.depth,
      heads: model.num_heads,
      classes: number(model.num_classes),
      engine: model.engine,
    };
    this.parts("facts").textContent = say(model.attention ? "facts" : "facts.plain", facts);
    this.parts("reader").textContent = say(this.reader() === "class" ? "mode.class" : "mode.average");
    const label = model.attention ? "stage.label" : "stage.plain";
    this.parts("stage").setAttribute("aria-label", say(label, { model: model.name, ...facts }));
    this.parts("stage").setAttribute("role", model.attention ? "application" : "img");
    this.parts("layers").setAttribute("aria-label", say("layers"));
    this.parts("mask").setAttribute("aria-label", say("mask.label", { model: model.name }));
    if (answer?.mask) {
      this.showOpacity();
      this.mask.point(this.mask.place, false);
    }
    this.parts("positions").setAttribute("aria-label", say("positions.label"));
    this.parts("distance-readout").textContent = say("distance.hint");
    if (!model.num_classes) drawBars(this.parts("bars"), []);
    if (answer) {
      drawBars(this.parts("bars"), lines(answer, model.legend), nothing(answer));
      this.parts("time").textContent = say("answer.time", {
        milliseconds: number(answer.milliseconds, { maximumFractionDigits: 0 }),
      });
    }
    if (this.places.answer) this.showPlace(this.places.cell);
    this.render();
  }

  /** How much of the photo the mask covers. */
  showOpacity() {
    const share = Number(this.parts("opacity").value) / 100;
    this.parts("opacity-value").textContent = percent(share);
    this.parts("opacity").setAttribute("aria-valuetext", percent(share));
    this.mask.show(share);
  }

  /** The class under the pointer: in words, and in the legend. */
  tellClass(words, number) {
    this.parts("mask-readout").textContent = words;
    const label = this.model.legend[number]?.label;
    for (const line of this.parts("bars").children) {
      line.classList.toggle("pointed", label !== undefined && line.dataset.label === label);
    }
  }

  /** What the answer is read from: a class token, or the mean of all patches. */
  reader() {
    return this.model.class_token ? "class" : "average";
  }

  render(aloud = false) {
    const { maps, state, model } = this;
    if (!maps) return;
    const mode = state.hover !== null ? "patch" : state.mode;
    const query = state.hover ?? (state.mode === "patch" ? state.pinned : null);
    const shares = mode === "rollout" ? maps.joined : maps.shares(state.layer, state.head, query);
    this.stage.show(levels(shares), query);
    this.renderControls(mode);
    const layers = Array.from({ length: maps.layers }, (_, layer) => levels(maps.shares(layer, state.head, query)));
    this.layers.draw(layers, maps.grid, mode === "rollout" ? -1 : state.layer, (layer) =>
      say("layer.name", { layer: maps.names[layer - 1] }),
    );
    const heads = Array.from({ length: maps.heads }, (_, head) => levels(maps.shares(state.layer, head, query)));
    this.heads.draw(heads, maps.grid, mode === "rollout" ? -1 : state.head, (head) => say("head.name", { head }));
    this.parts("heads-title").textContent = say("heads.title", { layer: maps.names[state.layer] });
    this.parts("heads").setAttribute("aria-label", say("heads.title", { layer: maps.names[state.layer] }));
    this.distances.show(maps.distance, state.layer, state.head, uniformDistance(model.grid, model.patch_pixels));
    if (query !== null && this.places.answer) this.showPlace(cellOf(this.placeOf(query), this.places.answer.grid));
    this.caption(mode, shares, query, aloud);
  }

  renderControls(mode) {
    const { maps, state } = this,
      joined = state.mode === "rollout";
    for (const radio of this.parts("modes").querySelectorAll("input")) radio.checked = radio.value === state.mode;
    const hint = mode !== "class" ? mode : this.model.legend ? "each" : this.reader();
    this.parts("mode-hint").textContent = say(`mode.${hint}.hint`);
    const layer = say("layer.value", { layer: maps.names[state.layer], depth: maps.layers });
    const head = maps.averaged
      ? say("head.only_mean")
      : state.head === null
        ? say("head.mean")
        : say("head.value", { head: state.head + 1, heads: maps.heads });
    this.parts("layer").value = String(state.layer + 1);
    this.parts("head").value = String(state.head === null ? 0 : state.head + 1);
    this.parts("layer").setAttribute("aria-valuetext", layer);
    this.parts("head").setAttribute("aria-valuetext", head);
    this.parts("layer-value").textContent = joined ? "–" : layer;
    this.parts("head-value").textContent = joined ? "–" : head;
  }

  caption(mode, shares, query, aloud) {
    const { state, maps } = this,
      place = (cell) => this.placeInWords(cell);
    const kind = mode === "class" ? this.reader() : mode,
      best = shares.indexOf(Math.max(...shares));
    const head =
      state.head === null || maps.averaged ? say("head.mean.name") : say("head.name", { head: state.head + 1 });
    const values = { layer: maps.names[state.layer], head, place: place(best), share: percent(shares[best]) };
    if (query !== null) Object.assign(values, { query: place(query), own: percent(shares[query]) });
    const text = say(shares[best] > 0 ? `caption.${kind}` : "caption.nothing", values);
    this.parts("caption").textContent = text;
    if (aloud) announce(text);
  }

  placeInWords(cell, [, columns] = this.maps.grid) {
    return say("place", { row: Math.floor(cell / columns) + 1, column: (cell % columns) + 1 });
  }

  showPlace(cell) {
    this.places.show(cell);
    const place = this.placeInWords(this.places.cell, this.places.answer.grid);
    this.parts("positions-readout").textContent = say("positions.readout", { place });
  }

  tellDistance(layer, head) {
    const readout = this.parts("distance-readout");
    if (layer === undefined) {
      readout.textContent = say("distance.hint");
      return;
    }
    const pixels = number(this.maps.distance[layer][head], { maximumFractionDigits: 1 });
    readout.textContent = say("distance.readout", { layer: this.maps.names[layer], head: head + 1, pixels });
  }
}
