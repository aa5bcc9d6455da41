// Show the statistics and the legend below the conversation, and announce answers to screen readers.

import { make, meaningOf, nameOf, ORIGINS, percent } from "./origins.js";

const MAX_SENTENCES = 20; // announced to screen readers and kept in the page
const at = (id) => document.getElementById(id);

export function showFigures(answer) {
  const figure = (value, digits) => (value === null ? "–" : value.toFixed(digits));
  at("per-forward").textContent = figure(answer.perForward, 2);
  at("rate").textContent = figure(answer.rate, 1);
  at("tokens").textContent = String(answer.tokens);
  const known = answer.speedup !== null;
  at("speedup").textContent = known ? `${answer.speedup.toFixed(2)}×` : "–";
  at("formula").textContent = known
    ? `Speed-up: tokens per second × ${(1000 * answer.plain).toFixed(0)} ms, the measured time of a step without drafts.`
    : "Plain decoding yields 1 token per forward pass. The speed-up appears once the engine has measured a plain step.";
}

export function showLegend(counts) {
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const items = Object.keys(ORIGINS).filter((origin) => counts.get(origin)).map((origin) => {
    const item = make("li");
    const sample = make("span", `token o-${origin}`, nameOf(origin));
    item.title = meaningOf(origin);
    item.append(sample, make("span", "share", percent(counts.get(origin) / total)));
    return item;
  });
  at("legend").replaceChildren(...items);
  at("legend-hint").hidden = items.length > 0;
}

// Announces an answer in whole sentences, not token by token.
export class Speaker {
  constructor() {
    this.waiting = "";
  }

  add(text) {
    this.waiting += text;
    const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => this.waiting.lastIndexOf(mark)));
    if (end > 60) {
      say(this.waiting.slice(0, end + 1));
      this.waiting = this.waiting.slice(end + 1);
    }
  }

  finish(words) {
    say(`${this.waiting} ${words}`);
    this.waiting = "";
  }
}

// Append text for screen readers: appended text is read in order, replaced text may be skipped.
export function say(text) {
  const status = at("status");
  status.append(make("p", "", text));
  while (status.childElementCount > MAX_SENTENCES) status.firstChild.remove();
}
