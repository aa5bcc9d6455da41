// Show one answer: its tokens, their steps and its statistics.

import { make, meaningOf, nameOf } from "./origins.js";

export class Answer {
  // `plain`: seconds of a plain decoding step; null if the server has not measured it.
  constructor(plain) {
    this.plain = plain;
    this.steps = new Map();
    this.counts = new Map();
    this.text = "";
    this.tokens = 0;
    this.done = null;
    this.began = this.latest = 0;
    this.element = make("article", "message answer");
    this.element.setAttribute("aria-label", "Answer");
    this.body = make("div", "text");
    this.body.tabIndex = 0;
    this.body.setAttribute("role", "group");
    this.body.setAttribute("aria-label", "Answer. Arrow keys move between tokens, Enter shows the draft tree.");
    this.note = make("p", "note");
    this.element.append(this.body, this.note);
  }

  // Add an event of the stream.
  add(event) {
    const step = event.paceline;
    const content = event.choices?.[0]?.delta?.content ?? "";
    this.text += content;
    if (step === undefined) {
      if (content) this.body.append(make("span", "token o-target", content));
      return;
    }
    this.latest = performance.now();
    if (!this.steps.size) [this.began, this.first] = [this.latest, step];
    this.steps.set(step.step, step);
    this.tokens += step.tokens.length;
    this.last = step;
    for (const origin of step.origins) this.counts.set(origin, (this.counts.get(origin) ?? 0) + 1);
    for (const piece of step.pieces) this.body.append(pieceOf(piece));
    if (step.done !== undefined) this.done = step.done;
  }

  // Tokens per forward pass as the engine counts it: (new tokens - 1) / (forwards after the first token).
  get perForward() {
    if (this.done !== null) return this.done.tokens_per_forward;
    const forwards = this.steps.size ? this.last.forwards - this.first.forwards : 0;
    return forwards > 0 ? (this.tokens - 1) / forwards : null;
  }

  get rate() {
    const seconds = (this.latest - this.began) / 1000;
    return this.steps.size > 3 && seconds > 0 ? (this.tokens - this.first.tokens.length) / seconds : null;
  }

  // Speed-up over plain decoding: tokens per second times seconds per plain step.
  get speedup() {
    return this.plain === null || this.rate === null ? null : this.rate * this.plain;
  }

  finish(words) {
    const parts = [words];
    if (this.tokens) parts.push(`${this.tokens} tokens in ${this.last.forwards} forward passes`);
    if (this.perForward !== null) parts.push(`${this.perForward.toFixed(2)} tokens per forward`);
    if (this.speedup !== null) parts.push(`${this.speedup.toFixed(2)}× plain decoding`);
    this.note.textContent = parts.filter(Boolean).join(" · ");
  }
}

function pieceOf(piece) {
  const span = make("span", `token o-${piece.origin}`, piece.text);
  span.dataset.step = piece.step;
  span.dataset.token = piece.token;
  span.tabIndex = -1;
  span.title = `${nameOf(piece.origin)}: ${meaningOf(piece.origin)}`;
  return span;
}
