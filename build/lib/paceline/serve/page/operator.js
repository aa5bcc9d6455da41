// Run the dashboard: read the engine's metrics every two seconds while the page is visible.

import { make, meaningOf, nameOf, percent } from "./origins.js";
import { plot, ticks } from "./plot.js";
import { about } from "./stream.js";

const INTERVAL_MS = 2000;
const at = (id) => document.getElementById(id);
const integer = new Intl.NumberFormat("en");
let previous = null; // { time, load } of the previous response
let drawn = "";

function tiles(metrics, rate) {
  const { load } = metrics;
  const share = (part, of) => (of ? percent(part / of) : "–");
  const decoding = load.forwards ? (load.new_tokens / load.forwards).toFixed(2) : "–";
  return [
    ["running", integer.format(load.running), `batch of up to ${metrics.max_batch}`],
    ["waiting", integer.format(load.waiting), `${integer.format(metrics.open)} open of ${integer.format(metrics.most_open)}`],
    ["tokens per second", rate === null ? "–" : rate.toFixed(1), `${integer.format(load.new_tokens)} in total`],
    ["tokens per forward pass", decoding, `${integer.format(load.forwards)} forward passes of the batch`],
    ["acceptance rate", share(load.accepted_tokens, load.drafted_tokens), `${integer.format(load.accepted_tokens)} of ${integer.format(load.drafted_tokens)}`],
    ["KV cache usage", percent(load.cache_usage), `${integer.format(load.preemptions)} preemptions`],
    ["prefix cache hits", share(load.prefix_hits, load.prompt_tokens), `${integer.format(load.prefix_hits)} of ${integer.format(load.prompt_tokens)}`],
    ["finished", integer.format(load.finished), `${integer.format(load.aborted)} aborted, ${integer.format(load.drafter_failures)} drafter failures`],
  ];
}

function tile([name, value, more]) {
  const card = make("div", "card");
  card.append(make("dt", "", name), make("dd", "", value), make("dd", "more", more));
  return card;
}

function sources(rows) {
  const total = rows.reduce((sum, row) => sum + row.accepted, 0);
  return rows.map((row) => {
    const line = make("tr");
    const name = make("td");
    const sample = make("span", `token o-${row.origin}`, nameOf(row.origin));
    sample.title = meaningOf(row.origin);
    name.append(sample);
    const drafted = row.origin !== "target";
    const cells = [
      drafted ? integer.format(row.drafted) : "–", drafted ? integer.format(row.accepted) : "–",
      drafted ? percent(row.accepted / row.drafted) : "–", total ? percent(row.accepted / total) : "–",
    ];
    line.append(name, ...cells.map((text) => make("td", "number", text)));
    return line;
  });
}

function curves({ curve, reliability }) {
  const shape = JSON.stringify([curve, reliability]);
  if (shape === drawn) return;
  drawn = shape;
  if (curve === null) at("curve").replaceChildren(make("p", "quiet", "Not measured yet. The first answer with a draft budget measures it."));
  else {
    const points = curve.rows.map((rows, index) => [rows, Number((1000 * curve.seconds[index]).toPrecision(4))]);
    plot(at("curve"), {
      points, logarithmic: true, xs: curve.rows.filter((rows) => Number.isInteger(Math.log2(rows))),
      ys: ticks(points.at(-1)[1]), xTitle: "tokens", yTitle: "ms",
      label: `A forward pass over 1 token takes ${points[0][1]} ms, over ${points.at(-1)[0]} tokens ${points.at(-1)[1]} ms.`,
    });
  }
  if (!reliability?.length) at("reliability").replaceChildren(make("p", "quiet", "No data yet, or this drafter has no draft budget."));
  else {
    const maxTrials = Math.max(...reliability.map((step) => step.trials));
    const scale = [0, 0.2, 0.4, 0.6, 0.8, 1];
    plot(at("reliability"), {
      points: reliability.map((step) => [step.predicted, step.observed]), weights: reliability.map((step) => step.trials / maxTrials),
      xs: scale, ys: scale, ideal: true, xTitle: "predicted", yTitle: "accepted",
      label: reliability.map((step) => `predicted ${percent(step.predicted)}, accepted ${percent(step.observed)}`).join("; "),
    });
  }
}

async function update() {
  if (document.hidden) return;
  try {
    const metrics = await about("/page/operator.json");
    const now = { time: performance.now(), load: metrics.load };
    const seconds = previous === null ? 0 : (now.time - previous.time) / 1000;
    const rate = seconds > 0 ? (now.load.new_tokens - previous.load.new_tokens) / seconds : null;
    previous = now;
    at("model").textContent = `${metrics.model} with ${metrics.drafter}`;
    at("tiles").replaceChildren(...tiles(metrics, rate).map(tile));
    at("origins").replaceChildren(...sources(metrics.origins));
    curves(metrics);
    at("state").textContent = "";
  } catch (error) {
    at("state").textContent = error.status === undefined ? "The server cannot be reached." : error.message;
  }
}

update();
setInterval(update, INTERVAL_MS);
document.addEventListener("visibilitychange", update);
