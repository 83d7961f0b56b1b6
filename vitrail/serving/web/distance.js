// How far each head looks, against depth: the paper's Figure 7 (right) for the picture at hand.
import { shape, stepOf } from "./elements.js";
import { number, say } from "./words.js";

const HEIGHT = 260,
  LEFT = 44,
  RIGHT = 10,
  TOP = 24,
  BOTTOM = 36,
  NEAR = 22;

/** The mean distance of any two patches: that of a head which looks everywhere alike. */
export function uniformDistance([rows, columns], pixels) {
  const offsets = (count) =>
    Array.from({ length: 2 * count - 1 }, (_, place) => [place - count + 1, count - Math.abs(place - count + 1)]);
  let total = 0;
  for (const [down, many] of offsets(rows)) {
    for (const [right, times] of offsets(columns)) total += many * times * Math.hypot(down, right);
  }
  return (pixels * total) / (rows * columns) ** 2;
}

/** A round step that cuts a range into about four. */
function roundStep(range) {
  const rough = range / 4,
    power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

export class DistanceChart {
  /** choose(layer, head); tell(layer, head) while pointing, tell() when not. */
  constructor(root, { choose, tell }) {
    this.root = root;
    this.choose = choose;
    this.tell = tell;
    root.addEventListener("keydown", (event) => this.pressed(event));
    root.addEventListener("pointermove", (event) => {
      const near = this.nearest(event);
      if (near) tell(near.layer, near.head);
      else tell();
    });
    root.addEventListener("pointerleave", () => tell());
    root.addEventListener("click", (event) => {
      const near = this.nearest(event);
      if (near) choose(near.layer, near.head);
    });
    new ResizeObserver(() => this.distance && this.root.clientWidth !== this.width && this.draw()).observe(root);
  }

  /** The dot a person means, who need not hit it: dots are small, fingers are not. */
  nearest(event) {
    const box = this.root.getBoundingClientRect(),
      [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const away = (dot) => Math.hypot(dot.x - x, dot.y - y);
    const [best] = [...(this.dots ?? [])].sort((a, b) => away(a) - away(b));
    return best && away(best) < NEAR ? best : null;
  }

  pressed(event) {
    const step = stepOf(event);
    if (!step || !this.distance) return;
    event.preventDefault();
    const layer = Math.min(this.distance.length - 1, Math.max(0, this.layer + step[1]));
    const order = this.distance[layer]
      .map((_, head) => head)
      .sort((a, b) => this.distance[layer][a] - this.distance[layer][b]);
    const place = this.head === null ? 0 : order.indexOf(this.head) - step[0];
    const head = order[Math.min(order.length - 1, Math.max(0, place))];
    this.choose(layer, head);
    this.tell(layer, head);
  }

  /** distance: pixels by layer and head; uniform: that of a head which looks everywhere alike. */
  show(distance, layer, head, uniform) {
    Object.assign(this, { distance, layer, head, uniform });
    this.draw();
  }

  draw() {
    const { distance, layer, uniform } = this;
    this.width = this.root.clientWidth;
    const width = Math.max(240, this.width);
    const most = 1.14 * Math.max(uniform, ...distance.flat()),
      step = roundStep(most);
    const x = (place) => LEFT + ((place + 0.5) * (width - LEFT - RIGHT)) / distance.length;
    const y = (pixels) => HEIGHT - BOTTOM - (pixels / most) * (HEIGHT - TOP - BOTTOM);
    const label = say("distance.label", { heads: distance[0].length, depth: distance.length });
    const drawing = shape("svg", {
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "application",
      tabindex: "0",
      "aria-label": label,
    });
    const text = (content, attributes) => drawing.append(shape("text", attributes, content));
    drawing.append(
      shape("rect", {
        x: x(layer) - 9,
        y: TOP,
        width: 18,
        height: HEIGHT - TOP - BOTTOM,
        rx: 4,
        class: "chosen-layer",
      }),
    );
    for (let tick = 0; tick <= most; tick += step) {
      drawing.append(shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick), class: "gridline" }));
      text(number(tick), { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" });
    }
    const every = Math.ceil(distance.length / 14);
    distance.forEach((_, place) => {
      if (place % every === 0)
        text(number(place + 1), { x: x(place), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" });
    });
    text(say("distance.x"), { x: width - RIGHT, y: HEIGHT - 3, "text-anchor": "end" });
    text(say("distance.y"), { x: 0, y: 12 });
    drawing.append(shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(uniform), y2: y(uniform), class: "uniform" }));
    this.dots = distance.flatMap((heads, at) =>
      heads.map((pixels, which) => ({ x: x(at), y: y(pixels), layer: at, head: which })),
    );
    drawing.append(...this.dots.map((dot) => this.circle(dot)));
    text(say("distance.uniform"), { x: LEFT + 4, y: y(uniform) - 6, class: "over" });
    const focused = this.root.contains(document.activeElement);
    this.root.replaceChildren(drawing);
    if (focused) drawing.focus({ preventScroll: true });
  }

  circle({ x, y, layer, head }) {
    const here = layer === this.layer && (this.head === null || head === this.head);
    return shape("circle", { cx: x, cy: y, r: here ? 5.5 : 4, class: here ? "dot here" : "dot" });
  }
}
