// Draw small line charts as SVG.

const NAMESPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT] = [420, 230, 44, 34, 10, 12];

function add(parent, tag, attributes, text = "") {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

// points: [[x, y], ...] ascending; ideal: draw y = x; weights: size of each dot, from 0 to 1.
export function plot(element, { points, xs, ys, xTitle, yTitle, label, ideal = false, weights = null, logarithmic = false }) {
  const along = (x) => (logarithmic ? Math.log2(x) : x);
  const [low, high] = [along(xs[0]), along(Math.max(xs.at(-1), points.at(-1)[0]))];
  const x = (value) => LEFT + ((along(value) - low) / (high - low || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - ys[0]) / (ys.at(-1) - ys[0] || 1)) * (HEIGHT - BOTTOM - TOP);
  const svg = document.createElementNS(NAMESPACE, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  for (const tick of ys) {
    add(svg, "line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) });
    add(svg, "text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, String(tick));
  }
  for (const tick of xs) add(svg, "text", { x: x(tick), y: HEIGHT - BOTTOM + 15, "text-anchor": "middle" }, String(tick));
  add(svg, "text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 3, "text-anchor": "middle" }, xTitle);
  add(svg, "text", { x: 11, y: (HEIGHT - BOTTOM + TOP) / 2, "text-anchor": "middle", transform: `rotate(-90 11 ${(HEIGHT - BOTTOM + TOP) / 2})` }, yTitle);
  if (ideal) add(svg, "line", { class: "ideal", x1: x(xs[0]), y1: y(ys[0]), x2: x(xs.at(-1)), y2: y(ys.at(-1)) });
  add(svg, "polyline", { class: "curve", points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") });
  points.forEach(([a, b], at) => {
    const dot = add(svg, "circle", { class: "dot", cx: x(a), cy: y(b), r: weights === null ? 3 : 2.5 + 4 * weights[at] });
    add(dot, "title", {}, `${xTitle} ${a}: ${b}`);
  });
  element.replaceChildren(svg);
}

// Return round numbers from 0 to at least `max`.
export function ticks(max) {
  const raw = max / 4 || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * unit).find((unit) => unit >= raw);
  return Array.from({ length: Math.ceil(max / step - 1e-9) + 1 }, (_, index) => Number((index * step).toPrecision(6)));
}
