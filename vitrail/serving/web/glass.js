// Stained glass: a band of irregular panes over the page, in the colours of the picture that was last looked at.

const JEWELS = [
  "#1d3f8f",
  "#2b5fb4",
  "#8f1f36",
  "#b3293f",
  "#c98a22",
  "#e0a94a",
  "#1f6f54",
  "#2c8f70",
  "#5b3a86",
  "#27507a",
];
const LEAD = "#15161c";

/** The same numbers every time: the window does not change when the page is resized. */
function draws(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The panes of a window: each a list of corners in pixels. Some cells are whole, some cut in two. */
function panes(width, height, size) {
  const draw = draws(7),
    columns = Math.max(2, Math.round(width / size)),
    rows = Math.max(2, Math.round(height / size));
  const corner = [];
  for (let row = 0; row <= rows; row += 1) {
    for (let column = 0; column <= columns; column += 1) {
      const inner = (place, count) => (place === 0 || place === count ? 0 : 0.56 * (draw() - 0.5));
      corner.push([((column + inner(column, columns)) * width) / columns, ((row + inner(row, rows)) * height) / rows]);
    }
  }
  const found = [];
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const first = row * (columns + 1) + column;
      const [a, b, c, d] = [first, first + 1, first + columns + 2, first + columns + 1].map((place) => corner[place]);
      const cut = draw();
      if (cut < 0.3) found.push([a, b, c], [a, c, d]);
      else if (cut < 0.6) found.push([a, b, d], [b, c, d]);
      else found.push([a, b, c, d]);
    }
  }
  return found;
}

/** A picture's colours, by place: (x, y) from 0 to 1 gives a colour, a little richer than it was. Null for a grey one. */
export function coloursOf(picture) {
  const small = document.createElement("canvas"),
    across = 24,
    down = 6;
  Object.assign(small, { width: across, height: down });
  const pen = small.getContext("2d", { willReadFrequently: true });
  pen.drawImage(picture, 0, 0, across, down);
  const { data } = pen.getImageData(0, 0, across, down);
  const strength = (pixel) =>
    Math.max(data[pixel], data[pixel + 1], data[pixel + 2]) - Math.min(data[pixel], data[pixel + 1], data[pixel + 2]);
  const total = Array.from({ length: across * down }, (_, cell) => strength(4 * cell)).reduce(
    (sum, each) => sum + each,
    0,
  );
  if (total < 8 * across * down) return null;
  return (x, y) => {
    const cell = Math.min(down - 1, Math.floor(y * down)) * across + Math.min(across - 1, Math.floor(x * across));
    const pixel = [...data.slice(4 * cell, 4 * cell + 3)],
      grey = (pixel[0] + pixel[1] + pixel[2]) / 3;
    return `rgb(${pixel.map((value) => Math.round(Math.min(235, Math.max(24, grey + 1.35 * (value - grey))))).join(" ")})`;
  };
}

/** Draw the window over the whole canvas. colour: from coloursOf, or none for the jewels. */
export function drawWindow(canvas, colour = null) {
  const scale = Math.min(2, window.devicePixelRatio || 1),
    { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return;
  Object.assign(canvas, { width: width * scale, height: height * scale });
  const pen = canvas.getContext("2d"),
    draw = draws(3);
  pen.scale(scale, scale);
  pen.fillStyle = LEAD;
  pen.fillRect(0, 0, width, height);
  for (const corners of panes(width, height, 34)) {
    const [x, y] = [0, 1].map((axis) => corners.reduce((sum, each) => sum + each[axis], 0) / corners.length);
    const jewel = JEWELS[Math.floor(draw() * JEWELS.length)],
      light = draw();
    const path = new Path2D();
    corners.forEach((each, place) => (place ? path.lineTo(...each) : path.moveTo(...each)));
    path.closePath();
    pen.fillStyle = colour ? colour(x / width, y / height) : jewel;
    pen.fill(path);
    // Old glass is uneven: light comes through more at one side, and no two panes are alike.
    const shine = pen.createLinearGradient(x - 18, y - 22, x + 18, y + 22);
    shine.addColorStop(0, `rgb(255 246 220 / ${0.1 + 0.22 * light})`);
    shine.addColorStop(1, `rgb(6 8 22 / ${0.12 + 0.22 * (1 - light)})`);
    pen.fillStyle = shine;
    pen.fill(path);
    pen.lineJoin = "round";
    pen.lineWidth = 2.4;
    pen.strokeStyle = LEAD;
    pen.stroke(path);
  }
}
