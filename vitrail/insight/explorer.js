// "Where a patch looks": click a patch, or move with the arrow keys, to see where it attends in each layer.
// Attention comes as 8-bit levels: a share is peak * (level / 255) ** 2. Query 0 is what the classifier reads.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("explorer-data").textContent);
  const root = document.getElementById("explorer");
  const find = (name) => root.querySelector(`[data-part="${name}"]`);
  const canvas = find("canvas"), said = find("said"), layers = find("layers");
  const chooseImage = find("image"), chooseHead = find("head"), chooseLayer = find("layer"), reader = find("reader");
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const palette = bytes(data.palette);
  const state = { image: 0, head: -1, layer: Math.floor(data.steps.length / 2), query: 0 };

  function unpacked(maps) {
    const levels = bytes(maps.levels), peaks = new Float32Array(bytes(maps.peaks).buffer);
    const cells = maps.grid[0] * maps.grid[1];
    const share = (step, query, cell) => {
      const row = step * (cells + 1) + query;
      return peaks[row] * (levels[row * cells + cell] / 255) ** 2;
    };
    return { grid: maps.grid, share };
  }

  function averaged(heads) {
    const share = (...place) => heads.reduce((sum, head) => sum + head.share(...place), 0) / heads.length;
    return { grid: heads[0].grid, share };
  }

  const images = data.images.map((image) => {
    const heads = image.heads.map(unpacked);
    return { ...image, heads, average: image.average ? unpacked(image.average) : averaged(heads) };
  });

  const current = () => (state.head < 0 ? images[state.image].average : images[state.image].heads[state.head]);

  function shares(step) {
    const maps = current(), cells = maps.grid[0] * maps.grid[1];
    return Float32Array.from({ length: cells }, (_, cell) => maps.share(step, state.query, cell));
  }

  // By the root: attention has few large and many small shares, and both matter.
  const strengths = (values) => {
    const most = Math.max(...values) || 1;
    return values.map((value) => Math.sqrt(value / most));
  };

  function drawImage() {
    const picture = images[state.image].picture;
    if (!picture) return;
    canvas.width = 2 * picture.naturalWidth;
    canvas.height = 2 * picture.naturalHeight;
    const pen = canvas.getContext("2d", { willReadFrequently: true });
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
    const [rows, columns] = current().grid, strength = strengths(shares(state.layer));
    const frame = pen.getImageData(0, 0, canvas.width, canvas.height), pixels = frame.data;
    for (let y = 0; y < canvas.height; y++) {
      const row = Math.floor((y * rows) / canvas.height) * columns;
      for (let x = 0; x < canvas.width; x++) {
        const level = strength[row + Math.floor((x * columns) / canvas.width)];
        const at = 4 * (y * canvas.width + x), colour = 3 * Math.round(255 * level);
        const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2], mix = 0.35 + 0.5 * level;
        for (let band = 0; band < 3; band++) pixels[at + band] = grey * (1 - mix) + palette[colour + band] * mix;
      }
    }
    pen.putImageData(frame, 0, 0);
    if (state.query > 0) {
      const cell = state.query - 1, high = canvas.height / rows, wide = canvas.width / columns;
      const box = [(cell % columns) * wide, Math.floor(cell / columns) * high, wide, high];
      for (const [width, colour] of [[7, "#000"], [3, "#00e5ff"]]) {
        pen.lineWidth = width;
        pen.strokeStyle = colour;
        pen.strokeRect(...box);
      }
    }
  }

  function drawLayers() {
    const [rows, columns] = current().grid;
    layers.querySelectorAll("canvas").forEach((small, step) => {
      small.width = columns;
      small.height = rows;
      const pen = small.getContext("2d"), frame = pen.createImageData(columns, rows);
      strengths(shares(step)).forEach((level, cell) => {
        const colour = 3 * Math.round(255 * level);
        frame.data.set([palette[colour], palette[colour + 1], palette[colour + 2], 255], 4 * cell);
      });
      pen.putImageData(frame, 0, 0);
      small.parentElement.setAttribute("aria-pressed", String(step === state.layer));
    });
  }

  const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

  function describe() {
    const maps = current(), [rows, columns] = maps.grid, values = shares(state.layer);
    const total = values.reduce((sum, each) => sum + each, 0), best = values.indexOf(Math.max(...values));
    const place = (cell) => `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
    const head = state.head < 0 ? "all heads" : `head ${state.head + 1}`;
    const from = state.query ? `The patch in ${place(state.query - 1)}` : `What the classifier reads (${data.reader})`;
    const own = state.query - 1;
    const parts = [`${from}, layer ${data.steps[state.layer]}, ${head}: most attention, ${percent(values[best])}, ` +
      (best === own ? "stays on itself" : `goes to ${place(best)}`)];
    if (state.query) {
      const step = [data.grid[0] / rows, data.grid[1] / columns].map((count) => count * data.patchPixels);
      const far = values.reduce((sum, share, cell) => sum + share * Math.hypot(
        (Math.floor(cell / columns) - Math.floor(own / columns)) * step[0],
        ((cell % columns) - (own % columns)) * step[1]), 0);
      if (best !== own) parts.push(`${percent(values[own])} stays on itself`);
      parts.push(`it looks ${Math.round(far / (total || 1))} pixels far on average`);
    }
    if (total < 0.995) parts.push(`${percent(1 - total)} goes to tokens that are no patches (class, registers)`);
    said.textContent = parts.join("; ") + ".";
  }

  function draw() {
    chooseLayer.value = String(state.layer + 1);
    chooseLayer.setAttribute("aria-valuetext", `layer ${data.steps[state.layer]}`);
    find("layer-name").textContent = data.steps[state.layer];
    reader.setAttribute("aria-pressed", String(state.query === 0));
    drawImage();
    drawLayers();
    describe();
  }

  // Heads and their average may lie on different grids: keep the place, not the number.
  function changeMaps(change) {
    const before = current().grid, cell = state.query - 1;
    change();
    const after = current().grid;
    if (state.query) {
      const row = Math.floor(((Math.floor(cell / before[1]) + 0.5) * after[0]) / before[0]);
      const column = Math.floor((((cell % before[1]) + 0.5) * after[1]) / before[1]);
      state.query = 1 + row * after[1] + column;
    }
    draw();
  }

  function fillHeads() {
    const count = images[state.image].heads.length;
    const options = ["average of all heads", ...Array.from({ length: count }, (_, head) => `head ${head + 1}`)];
    chooseHead.replaceChildren(...options.map((text, place) => new Option(text, String(place - 1))));
    chooseHead.disabled = count === 0;
    state.head = Math.min(state.head, count - 1);
    chooseHead.value = String(state.head);
  }

  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect(), [rows, columns] = current().grid;
    const place = (at, length, count) => Math.min(count - 1, Math.max(0, Math.floor((at / length) * count)));
    const row = place(event.clientY - box.top, box.height, rows);
    const column = place(event.clientX - box.left, box.width, columns);
    state.query = 1 + row * columns + column;
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const move = moves[event.key], [rows, columns] = current().grid;
    if (!move) return;
    event.preventDefault();
    const cell = state.query ? state.query - 1 : Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const [down, right] = state.query ? move : [0, 0];
    const row = Math.min(rows - 1, Math.max(0, Math.floor(cell / columns) + down));
    const column = Math.min(columns - 1, Math.max(0, (cell % columns) + right));
    state.query = 1 + row * columns + column;
    draw();
  });
  reader.addEventListener("click", () => { state.query = 0; draw(); });
  chooseLayer.addEventListener("input", () => { state.layer = Number(chooseLayer.value) - 1; draw(); });
  chooseHead.addEventListener("change", () => changeMaps(() => { state.head = Number(chooseHead.value); }));
  chooseImage.addEventListener("change", () => changeMaps(() => {
    state.image = Number(chooseImage.value);
    fillHeads();
  }));

  data.steps.forEach((name, step) => {
    const button = document.createElement("button"), small = document.createElement("canvas");
    button.type = "button";
    button.append(small, document.createTextNode(name));
    button.setAttribute("aria-label", `layer ${name}`);
    button.addEventListener("click", () => { state.layer = step; draw(); });
    layers.append(button);
  });
  chooseImage.replaceChildren(...images.map((image, place) => new Option(image.name, String(place))));
  chooseImage.disabled = images.length === 1;
  chooseLayer.max = String(data.steps.length);
  fillHeads();
  draw();
  images.forEach((image, place) => {
    const picture = new Image();
    picture.onload = () => { image.picture = picture; if (place === state.image) draw(); };
    picture.src = image.address;
  });
})();
