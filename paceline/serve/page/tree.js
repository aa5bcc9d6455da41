// The draft tree of one step, as nested lists, and what the marks of tokens mean.

import { make, meaningOf, nameOf, ORIGINS, percent, visible } from "./origins.js";

const SIGNS = { accepted: "✓", other: "✗", parent: "·", end: "■", probe: "○" };

// Why a node was or was not accepted, in words.
export function reason(step, node) {
  const tree = step.tree;
  switch (tree.fates[node]) {
    case "accepted": return "accepted";
    case "other": return `the model chose “${visible(step.texts[tree.instead[node]])}” here`;
    case "parent": return "what comes before it was not accepted";
    case "end": return "the answer ended before it";
    default: return "fed only to learn from";
  }
}

// Fill `place` with a step. `chosen`: place of the token that was asked about among the new tokens.
export function showStep(place, step, chosen) {
  place.replaceChildren(summary(step), newTokens(step, chosen));
  if (step.tree === null) {
    place.append(make("p", "quiet", "Nothing was guessed in this step: the model chose the token itself."));
    return;
  }
  const title = make("h3", "", "What was guessed");
  const head = make("p", "quiet small", "The chance is the drafter's estimate, given that what comes before is accepted.");
  place.append(title, head, path(step, children(step.tree).get(-1), children(step.tree), "tree"));
}

// Fill `place` with a hint and all marks.
export function showMarks(place) {
  const list = make("dl", "marks");
  for (const [origin, [name, meaning]] of Object.entries(ORIGINS)) {
    if (origin === "draft") continue;
    const term = make("dt");
    term.append(make("span", `token o-${origin}`, name));
    list.append(term, make("dd", "quiet", meaning));
  }
  const hint = "Choose a token of an answer to see what was guessed in its step, with chances, and what became of it.";
  place.replaceChildren(make("p", "quiet", hint), make("h3", "", "Where tokens come from"), list);
}

function summary(step) {
  const fed = step.tree === null ? 0 : step.tree.tokens.length;
  const kept = step.origins.filter((origin) => origin !== "target").length;
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const text = `${plural(fed, "guess").replace("guesss", "guesses")}, ${kept} accepted: ${plural(step.tokens.length, "token")} for one forward.`;
  return make("p", "summary", text);
}

function newTokens(step, chosen) {
  const list = make("ol", "said");
  list.setAttribute("aria-label", "New tokens of this step");
  step.texts.forEach((text, at) => {
    const item = make("li");
    const token = make("span", `token chip o-${step.origins[at]}`, visible(text));
    token.title = `${nameOf(step.origins[at])}: ${meaningOf(step.origins[at])}`;
    if (at === chosen) item.setAttribute("aria-current", "true");
    item.append(token, make("span", "hidden", `, ${nameOf(step.origins[at])}`));
    list.append(item);
  });
  return list;
}

function children(tree) {
  const below = new Map();
  tree.parents.forEach((parent, node) => below.set(parent, [...(below.get(parent) ?? []), node]));
  return below;
}

// The way down from some siblings, straight on: at every place the accepted or first one, below it what was guessed instead.
function path(step, siblings, below, classes = "") {
  const list = make("ul", classes);
  while (siblings?.length) {
    const main = siblings.find((node) => step.tree.fates[node] === "accepted") ?? siblings[0];
    const item = make("li");
    item.append(row(step, main));
    for (const node of siblings) if (node !== main) item.append(instead(step, node, below));
    list.append(item);
    siblings = below.get(main);
  }
  return list;
}

function instead(step, node, below) {
  const list = path(step, below.get(node), below, "instead");
  const item = make("li");
  item.append(row(step, node));
  list.prepend(item);
  return list;
}

function row(step, node) {
  const { texts, origins, fates, chances } = step.tree;
  const line = make("div", `node f-${fates[node]}`);
  const sign = make("span", "sign", SIGNS[fates[node]]);
  sign.setAttribute("aria-hidden", "true");
  const token = make("span", `token chip o-${origins[node]}`, visible(texts[node]));
  token.title = `${nameOf(origins[node])}: ${meaningOf(origins[node])}`;
  line.append(sign, token, chance(chances[node]), make("span", "from", nameOf(origins[node])));
  line.append(make("span", "why", reason(step, node)));
  return line;
}

function chance(share) {
  const box = make("span", "chance");
  if (share === null) {
    box.append(make("span", "number", "–"));
    box.title = "The drafter names no chance.";
    return box;
  }
  const bar = make("span", "bar");
  const fill = make("span", "fill");
  fill.style.width = `${100 * Math.min(1, share)}%`;
  bar.append(fill);
  bar.setAttribute("aria-hidden", "true");
  box.append(bar, make("span", "number", percent(share)));
  return box;
}
