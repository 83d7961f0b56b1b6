// Pictures drawn here, so that there is something to look at without a file.
import { make } from "./elements.js";
import { inWords, say } from "./words.js";

// Strokes of a pen on a field of 28 x 28.
const DIGITS = {
  0: "M14 5C8 5 7 11 7 14C7 19 9 23 14 23C19 23 21 18 21 14C21 9 19 5 14 5",
  2: "M8 10C8 4 20 4 20 10C20 15 11 18 8 23L21 23",
  3: "M8 7C11 4 20 4 19 9C19 13 14 13.5 12 13.5C16 13.5 21 15 20 19C19 24 10 24 8 21",
  4: "M15 5L7 16.5L21 16.5M17 11L16.5 24",
  5: "M20 5L10 5L9 12C14 10 20 12 20 17C20 23 12 24 8 21",
};

/** White on black, as handwriting data sets are; models of few pixels know digits that fill the field. */
const digit = (path) => (pen, fewPixels) => {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, 28, 28);
  pen.translate(14, 14);
  if (fewPixels) pen.scale(1.1, 1.34);
  pen.translate(-14, -14);
  Object.assign(pen, { strokeStyle: "#fff", lineWidth: fewPixels ? 3.2 : 2.8, lineCap: "round", lineJoin: "round" });
  pen.stroke(new Path2D(path));
};

const sky = (pen, height, ...colours) => {
  const gradient = pen.createLinearGradient(0, 0, 0, height);
  colours.forEach((colour, place) => gradient.addColorStop(place / (colours.length - 1), colour));
  pen.fillStyle = gradient;
  pen.fillRect(0, 0, 224, height);
};

const fill = (pen, colour, path) => {
  pen.fillStyle = colour;
  pen.fill(new Path2D(path));
};

const disc = (pen, colour, x, y, radius) => {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fill();
};

function balloon(pen) {
  sky(pen, 224, "#3f8fd6", "#a9d5f2", "#f6ead2");
  fill(pen, "#ffffffb0", "M20 60C30 46 52 50 56 60C70 58 72 70 60 72L24 72C12 72 12 60 20 60Z");
  fill(pen, "#ffffff90", "M164 120C172 108 192 112 194 120C206 119 208 130 198 131L168 131C156 131 156 121 164 120Z");
  fill(pen, "#6d9a5a", "M0 196C50 176 90 190 130 194C170 198 200 182 224 186L224 224L0 224Z");
  fill(pen, "#4f7d46", "M0 210C60 200 120 214 224 204L224 224L0 224Z");
  const gores = ["#c8283c", "#f2b134", "#c8283c", "#2f6fc0", "#c8283c", "#f2b134", "#c8283c"];
  pen.save();
  pen.clip(
    new Path2D("M112 22C70 22 54 54 58 82C62 106 88 126 100 142L124 142C136 126 162 106 166 82C170 54 154 22 112 22Z"),
  );
  gores.forEach((colour, place) => {
    const [left, right] = [place, place + 1].map((edge) => (edge / 3.5 - 1) * 58);
    fill(
      pen,
      colour,
      `M112 18C${112 + left * 1.3} 40 ${112 + left * 1.3} 90 ${112 + left / 4} 146L${112 + right / 4} 146C${112 + right * 1.3} 90 ${112 + right * 1.3} 40 112 18Z`,
    );
  });
  const shade = pen.createLinearGradient(56, 0, 168, 0);
  shade.addColorStop(0, "#ffffff48");
  shade.addColorStop(0.5, "#ffffff00");
  shade.addColorStop(1, "#00000058");
  pen.fillStyle = shade;
  pen.fillRect(50, 10, 124, 140);
  pen.restore();
  Object.assign(pen, { strokeStyle: "#4a3524", lineWidth: 1.2 });
  pen.stroke(new Path2D("M101 142L105 162M123 142L119 162M112 142L112 162"));
  fill(pen, "#7a5230", "M103 160L121 160L119 176L105 176Z");
  fill(pen, "#9a6b40", "M102 159L122 159L122 163L102 163Z");
}

function boat(pen) {
  sky(pen, 140, "#35477d", "#c96a5a", "#f6b35c", "#fbdf9a");
  disc(pen, "#fff3c4", 168, 118, 17);
  const sea = pen.createLinearGradient(0, 136, 0, 224);
  sea.addColorStop(0, "#d9925c");
  sea.addColorStop(0.3, "#4f6a8f");
  sea.addColorStop(1, "#1d3253");
  pen.fillStyle = sea;
  pen.fillRect(0, 136, 224, 88);
  fill(
    pen,
    "#ffe8ae80",
    "M150 142L188 142L182 146L156 146ZM146 154L192 154L186 158L150 158ZM154 168L184 168L180 172L158 172Z",
  );
  fill(pen, "#f7f1e4", "M98 34C122 70 138 104 142 146L98 146Z");
  fill(pen, "#dfd2ba", "M92 48C76 84 62 114 54 146L92 146Z");
  fill(pen, "#5c3a22", "M93 26L97 26L97 160L93 160Z");
  fill(pen, "#7c2431", "M44 156L156 156C150 172 142 180 132 182L68 182C56 180 48 170 44 156Z");
  fill(pen, "#f3e6cf", "M45 158L155 158L154 163L47 163Z");
  Object.assign(pen, { strokeStyle: "#bcd0e455", lineWidth: 2 });
  for (let wave = 0; wave < 7; wave += 1) {
    const left = (wave * 61) % 190,
      top = 184 + wave * 5.5;
    pen.stroke(new Path2D(`M${left} ${top}q10 -5 20 0t20 0`));
  }
}

function lights(pen) {
  sky(pen, 224, "#8fb6d8", "#cfe0ec", "#e9e6de");
  fill(pen, "#7d8a96", "M0 150L36 150L36 112L72 112L72 162L120 162L120 224L0 224Z");
  fill(pen, "#92a0ab", "M150 168L150 128L190 128L190 148L224 148L224 224L150 224Z");
  fill(pen, "#2b2f36", "M106 168L118 168L118 224L106 224Z");
  fill(
    pen,
    "#1f2329",
    "M80 18C80 12 84 8 90 8L134 8C140 8 144 12 144 18L144 160C144 166 140 170 134 170L90 170C84 170 80 166 80 160Z",
  );
  fill(
    pen,
    "#e8b52c",
    "M84 20C84 15 87 12 92 12L132 12C137 12 140 15 140 20L140 158C140 163 137 166 132 166L92 166C87 166 84 163 84 158Z",
  );
  fill(
    pen,
    "#23272d",
    "M89 24C89 19 91 17 96 17L128 17C133 17 135 19 135 24L135 154C135 159 133 161 128 161L96 161C91 161 89 159 89 154Z",
  );
  disc(pen, "#e3342f", 112, 42, 18);
  disc(pen, "#ff8d7a", 107, 36, 6);
  disc(pen, "#5c4a14", 112, 89, 18);
  disc(pen, "#123f26", 112, 136, 18);
}

function fish(pen) {
  sky(pen, 224, "#bfe3ea", "#5fb0c6", "#236a86");
  fill(
    pen,
    "#2f8f5d",
    "M24 224C18 190 34 176 24 150C40 172 32 196 40 224ZM186 224C196 196 178 184 188 160C204 184 196 200 204 224Z",
  );
  fill(pen, "#cdb58a", "M0 210C60 200 150 204 224 208L224 224L0 224Z");
  fill(
    pen,
    "#f08a24",
    "M146 112C170 84 196 76 208 70C200 96 200 108 206 116C200 122 202 140 210 158C192 152 168 138 146 120Z",
  );
  fill(
    pen,
    "#f7a83c",
    "M92 76C104 50 138 52 148 66C140 76 132 82 124 86ZM96 150C104 172 122 176 132 170C128 160 124 150 120 144Z",
  );
  fill(
    pen,
    "#f0761b",
    "M34 116C48 84 92 68 124 80C146 88 156 104 158 114C150 132 128 152 96 152C64 150 42 136 34 116Z",
  );
  fill(pen, "#fbb860", "M38 122C60 136 104 140 146 124C132 142 112 152 94 151C66 149 46 138 38 122Z");
  Object.assign(pen, { strokeStyle: "#c4530f88", lineWidth: 1.6 });
  for (let row = 0; row < 4; row += 1) {
    for (let scale = 0; scale < 5; scale += 1)
      pen.stroke(new Path2D(`M${78 + 15 * scale + 6 * (row % 2)} ${92 + 11 * row}q8 5 0 11`));
  }
  pen.stroke(new Path2D("M70 86C78 100 78 124 70 140"));
  disc(pen, "#fff", 54, 108, 8);
  disc(pen, "#14161c", 53, 108, 4.6);
  pen.lineWidth = 2.4;
  pen.stroke(new Path2D("M36 118C40 122 44 122 48 120"));
  for (const [x, y, radius] of [
    [28, 84, 5],
    [36, 62, 7],
    [30, 36, 4],
  ])
    disc(pen, "#ffffff70", x, y, radius);
}

function mushroom(pen) {
  sky(pen, 224, "#20351f", "#3f5f2c", "#6b7f3a");
  for (let blade = 0; blade < 40; blade += 1) {
    const x = (blade * 53) % 224,
      top = 150 + ((blade * 29) % 44);
    fill(
      pen,
      blade % 2 ? "#4f7a2c" : "#2f5522",
      `M${x} 224Q${x + 3} ${top + 20} ${x + ((blade * 7) % 13) - 4} ${top}Q${x + 7} ${top + 24} ${x + 8} 224Z`,
    );
  }
  fill(pen, "#efe6d2", "M98 104C100 140 94 172 88 196C100 206 128 206 138 196C130 170 126 140 128 104Z");
  fill(pen, "#d8cbb0", "M118 104C118 140 122 176 128 200C132 199 136 198 138 196C130 170 126 140 128 104Z");
  fill(pen, "#f7f0df", "M92 122C104 130 122 130 134 122L130 136C120 140 106 140 96 136Z");
  fill(pen, "#c5232b", "M36 112C36 66 74 38 112 38C152 38 190 66 190 112C160 124 66 124 36 112Z");
  fill(pen, "#ffffff30", "M52 92C58 64 84 48 108 46C84 58 70 74 66 96Z");
  for (const [x, y, radius] of [
    [76, 74, 9],
    [112, 56, 8],
    [146, 72, 10],
    [100, 92, 11],
    [136, 100, 8],
    [62, 100, 7],
    [168, 100, 8],
  ]) {
    disc(pen, "#f6efe0", x, y, radius);
  }
}

function shapes(pen) {
  sky(pen, 224, "#f3efe6", "#e3dccb");
  disc(pen, "#2b5fb4", 72, 76, 44);
  fill(pen, "#b3293f", "M128 118L204 118L204 194L128 194Z");
  fill(pen, "#d99a26", "M66 132L110 206L22 206Z");
}

function heart(pen) {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, 224, 224);
  fill(
    pen,
    "#fff",
    "M112 194C60 152 30 124 30 86C30 56 52 38 74 38C92 38 106 48 112 64C118 48 132 38 150 38C172 38 194 56 194 86C194 124 164 152 112 194Z",
  );
}

const GREY = [
  ...[2, 4, 5, 0, 3].map((value) => ({
    words: "example.digit",
    values: { digit: value },
    field: 28,
    draw: digit(DIGITS[value]),
  })),
  { words: "example.heart", field: 224, draw: heart },
];
const COLOUR = [
  { words: "example.balloon", field: 224, draw: balloon },
  { words: "example.boat", field: 224, draw: boat },
  { words: "example.lights", field: 224, draw: lights },
  { words: "example.fish", field: 224, draw: fish },
  { words: "example.mushroom", field: 224, draw: mushroom },
  { words: "example.shapes", field: 224, draw: shapes },
];

/** Whether a model was made for grey pictures, which are mostly of digits. */
export const wantsDigits = (model) => model.channels === 1;

function paint(example, size, fewPixels) {
  const canvas = make("canvas", { width: size, height: size });
  const pen = canvas.getContext("2d");
  pen.scale(size / example.field, size / example.field);
  example.draw(pen, fewPixels);
  return canvas;
}

let stopWords = () => {};

/** Fill the list with pictures that suit the model; choose(blob, place) gets one as a PNG. Returns take(place). */
export function offerExamples(list, model, choose) {
  const fewPixels = Math.max(...model.image_size) <= 16;
  const offered = (wantsDigits(model) ? GREY : COLOUR).map((example, place) => {
    const take = () => paint(example, 448, fewPixels).toBlob((blob) => choose(blob, place), "image/png");
    const button = make("button", { type: "button", class: "example" }, paint(example, 144, fewPixels));
    button.addEventListener("click", take);
    return { example, button, take };
  });
  list.replaceChildren(...offered.map(({ button }) => make("li", {}, button)));
  stopWords();
  stopWords = inWords(() => {
    for (const { example, button } of offered) {
      button.setAttribute("aria-label", say(example.words, example.values));
      button.title = say(example.words, example.values);
    }
  });
  return (place) => offered[place].take();
}
