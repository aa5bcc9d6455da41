// The operator's view: figures of the engine, asked for every two seconds while somebody looks.

import { make, meaningOf, nameOf, percent } from "./origins.js";
import { plot, ticks } from "./plot.js";
import { about } from "./stream.js";

const PAUSE = 2000; // milliseconds
const at = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
let before = null; // { time, load } of the last answer
let drawn = "";

function tiles(found, rate) {
  const { load } = found;
  const share = (part, of) => (of ? percent(part / of) : "–");
  const decoding = load.forwards ? (load.new_tokens / load.forwards).toFixed(2) : "–";
  return [
    ["running", whole.format(load.running), `${found.max_batch} at a time`],
    ["waiting", whole.format(load.waiting), `${whole.format(found.open)} open of ${whole.format(found.most_open)}`],
    ["tokens per second", rate === null ? "–" : rate.toFixed(1), `${whole.format(load.new_tokens)} in all`],
    ["tokens per forward of the batch", decoding, `${whole.format(load.forwards)} forwards`],
    ["drafts accepted", share(load.accepted_tokens, load.drafted_tokens), `${whole.format(load.accepted_tokens)} of ${whole.format(load.drafted_tokens)}`],
    ["cache in use", percent(load.cache_usage), `${whole.format(load.preemptions)} put back to wait`],
    ["prompt tokens from the cache", share(load.prefix_hits, load.prompt_tokens), `${whole.format(load.prefix_hits)} of ${whole.format(load.prompt_tokens)}`],
    ["finished", whole.format(load.finished), `${whole.format(load.aborted)} aborted, ${whole.format(load.drafter_failures)} lost their drafter`],
  ];
}

function tile([name, value, more]) {
  const card = make("div", "card");
  card.append(make("dt", "", name), make("dd", "", value), make("dd", "more", more));
  return card;
}

function sources(rows) {
  const said = rows.reduce((sum, row) => sum + row.accepted, 0);
  return rows.map((row) => {
    const line = make("tr");
    const name = make("td");
    const sample = make("span", `token o-${row.origin}`, nameOf(row.origin));
    sample.title = meaningOf(row.origin);
    name.append(sample);
    const guessed = row.origin !== "target";
    const cells = [
      guessed ? whole.format(row.drafted) : "–", guessed ? whole.format(row.accepted) : "–",
      guessed ? percent(row.accepted / row.drafted) : "–", said ? percent(row.accepted / said) : "–",
    ];
    line.append(name, ...cells.map((text) => make("td", "number", text)));
    return line;
  });
}

function curves({ curve, reliability }) {
  const shape = JSON.stringify([curve, reliability]);
  if (shape === drawn) return;
  drawn = shape;
  if (curve === null) at("curve").replaceChildren(make("p", "quiet", "Not measured yet: the first answer with a budget does it."));
  else {
    const points = curve.rows.map((rows, place) => [rows, Number((1000 * curve.seconds[place]).toPrecision(4))]);
    plot(at("curve"), {
      points, logarithmic: true, xs: curve.rows.filter((rows) => Number.isInteger(Math.log2(rows))),
      ys: ticks(points.at(-1)[1]), xTitle: "rows", yTitle: "ms",
      label: `A forward of 1 row takes ${points[0][1]} ms, one of ${points.at(-1)[0]} rows ${points.at(-1)[1]} ms.`,
    });
  }
  if (!reliability?.length) at("reliability").replaceChildren(make("p", "quiet", "Nothing was counted yet, or this drafter has no budget."));
  else {
    const most = Math.max(...reliability.map((step) => step.trials));
    const scale = [0, 0.2, 0.4, 0.6, 0.8, 1];
    plot(at("reliability"), {
      points: reliability.map((step) => [step.predicted, step.came_true]), weights: reliability.map((step) => step.trials / most),
      xs: scale, ys: scale, ideal: true, xTitle: "chance", yTitle: "came true",
      label: reliability.map((step) => `${percent(step.predicted)} came true in ${percent(step.came_true)}`).join("; "),
    });
  }
}

async function look() {
  if (document.hidden) return;
  try {
    const found = await about("/page/operator.json");
    const now = { time: performance.now(), load: found.load };
    const seconds = before === null ? 0 : (now.time - before.time) / 1000;
    const rate = seconds > 0 ? (now.load.new_tokens - before.load.new_tokens) / seconds : null;
    before = now;
    at("model").textContent = `${found.model} with ${found.drafter}`;
    at("tiles").replaceChildren(...tiles(found, rate).map(tile));
    at("origins").replaceChildren(...sources(found.origins));
    curves(found);
    at("state").textContent = "";
  } catch (error) {
    at("state").textContent = error.status === undefined ? "The server cannot be reached." : error.message;
  }
}

look();
setInterval(look, PAUSE);
document.addEventListener("visibilitychange", look);
