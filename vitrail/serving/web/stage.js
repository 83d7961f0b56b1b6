// The picture as the model saw it, cut into panes, lit where attention goes.
import { ramp } from "./colours.js";
import { cellUnder, neighbour, stepOf } from "./elements.js";

const NIGHT = "9 10 24",
  TINY = 64,
  MILLISECONDS = 140;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Stage {
  /** heard: {hover(cell or null), pin(cell), move(cell), release()}. */
  constructor(canvas, heard) {
    this.canvas = canvas;
    this.heard = heard;
    this.picture = null;
    this.grid = null;
    this.query = null;
    this.levels = null;
    this.shown = null;
    this.look = "light";
    this.lines = true;
    canvas.addEventListener("pointermove", (event) => {
      if (this.grid && event.pointerType !== "touch") heard.hover(cellUnder(event, canvas, this.grid));
    });
    canvas.addEventListener("pointerleave", () => heard.hover(null));
    canvas.addEventListener("click", (event) => this.grid && heard.pin(cellUnder(event, canvas, this.grid)));
    canvas.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  pressed(event) {
    const step = stepOf(event);
    if (event.key === "Escape") this.heard.release();
    if (!step || !this.grid) return;
    event.preventDefault();
    this.heard.move(neighbour(this.query, step, this.grid));
  }

  /** A picture to show before, or without, any attention. */
  preview(picture) {
    Object.assign(this, { picture, grid: null, levels: null, shown: null, query: null });
    this.canvas.style.aspectRatio = "1";
    this.draw();
  }

  open(picture, grid) {
    Object.assign(this, { picture, grid });
    this.canvas.style.aspectRatio = `${picture.width} / ${picture.height}`;
    this.draw();
  }

  /** Go over to another map: at once, or in a few frames where the person does not mind movement. */
  show(levels, query) {
    this.query = query;
    const from = this.shown;
    this.levels = levels;
    cancelAnimationFrame(this.frame);
    if (!from || from.length !== levels.length || calm.matches) {
      this.shown = levels;
      return this.draw();
    }
    const began = performance.now();
    const next = (now) => {
      const done = Math.min(1, Math.max(0, (now - began) / MILLISECONDS));
      this.shown = done === 1 ? levels : levels.map((level, cell) => from[cell] + done * (level - from[cell]));
      this.draw();
      if (done < 1) this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
    return undefined;
  }

  draw() {
    const { canvas, picture } = this,
      scale = Math.min(3, window.devicePixelRatio || 1);
    const width = Math.round(canvas.clientWidth * scale),
      height = Math.round(canvas.clientHeight * scale);
    if (!width || !height) return;
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, width, height);
    if (!picture) return;
    pen.imageSmoothingEnabled = Math.max(picture.width, picture.height) > TINY;
    pen.imageSmoothingQuality = "high";
    // Before the answer the picture is shown whole; the model's own cut comes with the answer and fills the canvas.
    const fit = Math.min(width / picture.width, height / picture.height);
    const [wide, high] = [picture.width * fit, picture.height * fit];
    pen.drawImage(picture, (width - wide) / 2, (height - high) / 2, wide, high);
    if (!this.grid) return;
    if (this.shown && this.look !== "none") this.glaze(pen, width, height);
    if (this.lines) this.lead(pen, width, height, scale);
    if (this.query !== null && this.look !== "none") this.frameQuery(pen, width, height, scale);
  }

  /** Whole pixels, so that neighbouring panes meet without a seam. */
  box(cell, width, height) {
    const [rows, columns] = this.grid,
      row = Math.floor(cell / columns),
      column = cell % columns;
    const [left, right] = [column, column + 1].map((edge) => Math.round((edge * width) / columns));
    const [top, bottom] = [row, row + 1].map((edge) => Math.round((edge * height) / rows));
    return [left, top, right - left, bottom - top];
  }

  glaze(pen, width, height) {
    this.shown.forEach((level, cell) => {
      const box = this.box(cell, width, height);
      if (this.look === "colour") {
        pen.fillStyle = `rgb(${ramp(level).join(" ")} / 0.78)`;
        pen.fillRect(...box);
        return;
      }
      pen.fillStyle = `rgb(${NIGHT} / ${0.84 * (1 - level)})`;
      pen.fillRect(...box);
      pen.fillStyle = `rgb(255 201 92 / ${0.2 * level})`;
      pen.fillRect(...box);
      // The light catches the edge of a pane: so even a black one shows that it is looked at.
      const [left, top, wide, high] = box,
        edge = Math.max(1, Math.min(wide, high) * 0.045);
      Object.assign(pen, { strokeStyle: `rgb(255 214 122 / ${0.85 * level ** 2})`, lineWidth: edge });
      pen.strokeRect(left + 1.1 * edge, top + 1.1 * edge, wide - 2.2 * edge, high - 2.2 * edge);
    });
  }

  lead(pen, width, height, scale) {
    const [rows, columns] = this.grid,
      pane = Math.min(width / columns, height / rows);
    const thick = Math.max(scale, Math.min(4 * scale, pane * 0.055));
    const line = (colour, shift, weight) => {
      pen.fillStyle = colour;
      for (let row = 1; row < rows; row += 1)
        pen.fillRect(0, Math.round((row * height) / rows - weight / 2 + shift), width, weight);
      for (let column = 1; column < columns; column += 1)
        pen.fillRect(Math.round((column * width) / columns - weight / 2 + shift), 0, weight, height);
    };
    if (pane > 14 * scale) line("rgb(255 255 255 / 0.13)", thick * 0.8, scale);
    line("rgb(14 15 20 / 0.82)", 0, thick);
  }

  frameQuery(pen, width, height, scale) {
    const [left, top, wide, high] = this.box(this.query, width, height);
    for (const [colour, weight] of [
      ["#0b0c12", 5.5],
      ["#fff", 2.5],
    ]) {
      Object.assign(pen, { strokeStyle: colour, lineWidth: weight * scale, lineJoin: "round" });
      pen.strokeRect(left, top, wide, high);
    }
  }
}
