// The attention the server sends, unpacked: 8 bits a value, each row scaled by its own largest, which comes beside it.

/** Bytes out of base64. */
export function bytes(text) {
  const packed = atob(text),
    result = new Uint8Array(packed.length);
  for (let place = 0; place < packed.length; place += 1) result[place] = packed.charCodeAt(place);
  return result;
}

/**
 * Scaled so that the largest is 1; what is small stays visible by the root. A few patches, often plain corners, can get
 * many times the attention of all others: what lies far above nine tenths of them is as bright as can be, and no more.
 */
export function levels(shares, power = 0.7) {
  const sorted = Float32Array.from(shares).sort(),
    most = Math.min(sorted.at(-1), 1.5 * sorted[Math.floor(0.9 * (sorted.length - 1))]) || sorted.at(-1);
  return Float32Array.from(shares, (share) => (most > 0 ? Math.min(1, share / most) ** power : 0));
}

/** Half-precision numbers out of base64: older browsers have no array for them. */
export function halves(text) {
  const packed = new DataView(bytes(text).buffer);
  return Float32Array.from({ length: packed.byteLength / 2 }, (_, place) => {
    const bits = packed.getUint16(2 * place, true),
      power = (bits >> 10) & 31,
      fraction = bits & 1023;
    return power ? 2 ** (power - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
  });
}

export class Maps {
  constructor(answer) {
    const [rows, columns] = answer.grid;
    this.grid = answer.grid;
    this.patches = rows * columns;
    this.prefix = answer.prefix;
    this.averaged = answer.averaged;
    this.names = answer.layers;
    this.heads = answer.num_heads;
    this.queries = this.patches + (answer.prefix ? 1 : 0);
    this.packed = bytes(answer.attention);
    this.peaks = halves(answer.scale);
    console.assert(this.packed.length === this.peaks.length * this.patches, "attention of an unexpected size");
    this.joined = Float32Array.from(bytes(answer.rollout), (level) => (answer.rollout_max * level) / 255);
    this.distance = answer.distance;
    this.picture = new Blob([bytes(answer.image)], { type: "image/png" });
    this.kept = new Map();
  }

  get layers() {
    return this.names.length;
  }

  /** How much attention goes to each patch. head: null for the mean of all; query: null for what the answer is read from. */
  shares(layer, head, query) {
    const name = `${layer}/${head}/${query}`;
    if (!this.kept.has(name)) {
      if (this.kept.size > 2000) this.kept.clear();
      this.kept.set(name, this.work(layer, head, query));
    }
    return this.kept.get(name);
  }

  work(layer, head, query) {
    const heads = head === null ? [...Array(this.heads).keys()] : [head];
    // Without a class token the answer is read from all patches: then all of them ask.
    const queries =
      query !== null ? [query + (this.prefix ? 1 : 0)] : this.prefix ? [0] : [...Array(this.patches).keys()];
    const total = new Float32Array(this.patches);
    for (const each of heads) {
      for (const asking of queries) {
        const row = (layer * this.heads + each) * this.queries + asking,
          start = row * this.patches;
        const unit = this.peaks[row] / 255 / (heads.length * queries.length);
        for (let patch = 0; patch < this.patches; patch += 1) total[patch] += unit * this.packed[start + patch];
      }
    }
    return total;
  }
}
