// Colour maps that rise evenly in lightness, so that they can be told without telling hues, and in grey.

// Night blue, cobalt, teal, gold, pale light: the colours of old windows, each clearly lighter than the last.
const STOPS = [
  [13, 14, 36],
  [33, 48, 120],
  [22, 104, 142],
  [58, 158, 124],
  [178, 190, 66],
  [250, 222, 120],
  [255, 248, 222],
];

/** The colour of a level from 0 to 1: [red, green, blue]. */
export function ramp(level) {
  const place = Math.min(1, Math.max(0, level)) * (STOPS.length - 1);
  const below = Math.min(STOPS.length - 2, Math.floor(place)),
    share = place - below;
  return STOPS[below].map((from, channel) => Math.round(from + share * (STOPS[below + 1][channel] - from)));
}

/** A map of levels as a picture of one pixel a patch; style sheets make it larger. */
export function paintMap(canvas, levels, [rows, columns]) {
  if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
  const pen = canvas.getContext("2d"),
    frame = pen.createImageData(columns, rows);
  levels.forEach((level, cell) => frame.data.set([...ramp(level), 255], 4 * cell));
  pen.putImageData(frame, 0, 0);
}

/** The same, large enough for a frame around one patch. */
export function paintMarked(canvas, levels, grid, marked) {
  const [rows, columns] = grid,
    side = Math.max(1, Math.round(480 / Math.max(rows, columns)));
  const small = document.createElement("canvas");
  paintMap(small, levels, grid);
  Object.assign(canvas, { width: columns * side, height: rows * side });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(small, 0, 0, canvas.width, canvas.height);
  for (const [colour, weight] of [
    ["#0b0c12", 9],
    ["#fff", 4],
  ]) {
    Object.assign(pen, { strokeStyle: colour, lineWidth: weight, lineJoin: "round" });
    pen.strokeRect((marked % columns) * side, Math.floor(marked / columns) * side, side, side);
  }
}
