// Position similarity: how alike the model's embeddings of two places are (the paper's Figure 7, middle).
import { paintMarked } from "./colours.js";
import { cellUnder, neighbour, stepOf } from "./elements.js";
import { bytes } from "./maps.js";

export class PositionMap {
  /** moved(cell): the person chose a place here, by pointer or key. */
  constructor(canvas, moved) {
    this.canvas = canvas;
    this.cell = null;
    this.answer = null;
    canvas.addEventListener("pointermove", (event) => this.answer && moved(cellUnder(event, canvas, this.answer.grid)));
    canvas.addEventListener("click", (event) => this.answer && moved(cellUnder(event, canvas, this.answer.grid)));
    canvas.addEventListener("keydown", (event) => {
      const step = stepOf(event);
      if (!step || !this.answer) return;
      event.preventDefault();
      moved(neighbour(this.cell, step, this.answer.grid));
    });
  }

  open(answer) {
    const [rows, columns] = answer.grid;
    this.answer = { grid: answer.grid, similarity: bytes(answer.similarity) };
    this.canvas.style.aspectRatio = `${columns} / ${rows}`;
    this.show(neighbour(null, [0, 0], answer.grid));
  }

  /** The map of one place. Itself is alike to itself in every model and left out of the scale, so that the rest shows. */
  show(cell) {
    if (!this.answer) return;
    const { grid, similarity } = this.answer,
      patches = grid[0] * grid[1];
    this.cell = Math.min(patches - 1, cell);
    const row = similarity.subarray(this.cell * patches, (this.cell + 1) * patches);
    const others = [...row].filter((_, place) => place !== this.cell);
    const least = Math.min(...others, 255),
      range = Math.max(...others, 0) - least;
    const levels = Float32Array.from(row, (value) => (range > 0 ? Math.max(0, value - least) / range : 0));
    paintMarked(this.canvas, levels, grid, this.cell);
  }
}
