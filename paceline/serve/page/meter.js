// Figures and legend under the conversation, and what a screen reader is told of an answer.

import { make, meaningOf, nameOf, ORIGINS, percent } from "./origins.js";

const KEPT = 20; // sentences for screen readers
const at = (id) => document.getElementById(id);

export function showFigures(answer) {
  const figure = (value, digits) => (value === null ? "–" : value.toFixed(digits));
  at("per-forward").textContent = figure(answer.perForward, 2);
  at("rate").textContent = figure(answer.rate, 1);
  at("tokens").textContent = String(answer.tokens);
  const known = answer.faster !== null;
  at("faster").textContent = known ? `${answer.faster.toFixed(2)}×` : "–";
  at("formula").textContent = known
    ? `Speed-up: tokens per second × ${(1000 * answer.plain).toFixed(0)} ms, a step without drafts as the engine measured it.`
    : "Plain decoding has exactly 1 token per forward. The speed-up shows once the engine has measured a plain step.";
}

export function showLegend(counts) {
  const total = [...counts.values()].reduce((sum, one) => sum + one, 0);
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

// Says an answer in whole sentences, not token by token.
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

// What is added is said after what was added before it; a text that is replaced may never be heard.
export function say(text) {
  const place = at("status");
  place.append(make("p", "", text));
  while (place.childElementCount > KEPT) place.firstChild.remove();
}
