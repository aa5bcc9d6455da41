// Show the draft tree of one step as nested lists, and the legend of token sources.

import { make, meaningOf, nameOf, ORIGINS, percent, visible } from "./origins.js";

const SIGNS = { accepted: "✓", other: "✗", parent: "·", end: "■", probe: "○" };

// Explain why a node was accepted or rejected.
export function reason(step, node) {
  const tree = step.tree;
  switch (tree.status[node]) {
    case "accepted": return "accepted";
    case "other": return `the model chose “${visible(step.texts[tree.target_token[node]])}” here`;
    case "parent": return "its parent was rejected";
    case "end": return "the answer ended before this token";
    default: return "scored only, not a candidate";
  }
}

// Show a step in `element`. `chosen`: index of the selected token among the new tokens.
export function showStep(element, step, chosen) {
  element.replaceChildren(summary(step), newTokens(step, chosen));
  if (step.tree === null) {
    element.append(make("p", "quiet", "This step had no draft: the target chose the token."));
    return;
  }
  const title = make("h3", "", "Draft tree");
  const head = make("p", "quiet small", "Probability: the drafter's estimate, given that the parent is accepted.");
  element.append(title, head, path(step, children(step.tree).get(-1), children(step.tree), "tree"));
}

// Show a hint and the legend of all sources in `element`.
export function showMarks(element) {
  const list = make("dl", "marks");
  for (const [origin, [name, meaning]] of Object.entries(ORIGINS)) {
    if (origin === "draft") continue;
    const term = make("dt");
    term.append(make("span", `token o-${origin}`, name));
    list.append(term, make("dd", "quiet", meaning));
  }
  const hint = "Select a token of an answer to see the draft tree of its step, with probabilities and results.";
  element.replaceChildren(make("p", "quiet", hint), make("h3", "", "Token sources"), list);
}

function summary(step) {
  const drafted = step.tree === null ? 0 : step.tree.tokens.length;
  const accepted = step.origins.filter((origin) => origin !== "target").length;
  const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const text = `${plural(drafted, "draft token")}, ${accepted} accepted: ${plural(step.tokens.length, "token")} in one forward pass.`;
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

// List a path from the given siblings downwards: the accepted or first node per depth, its siblings indented below it.
function path(step, siblings, below, classes = "") {
  const list = make("ul", classes);
  while (siblings?.length) {
    const main = siblings.find((node) => step.tree.status[node] === "accepted") ?? siblings[0];
    const item = make("li");
    item.append(row(step, main));
    for (const node of siblings) if (node !== main) item.append(alternative(step, node, below));
    list.append(item);
    siblings = below.get(main);
  }
  return list;
}

function alternative(step, node, below) {
  const list = path(step, below.get(node), below, "instead");
  const item = make("li");
  item.append(row(step, node));
  list.prepend(item);
  return list;
}

function row(step, node) {
  const { texts, origins, status, probabilities } = step.tree;
  const line = make("div", `node f-${status[node]}`);
  const sign = make("span", "sign", SIGNS[status[node]]);
  sign.setAttribute("aria-hidden", "true");
  const token = make("span", `token chip o-${origins[node]}`, visible(texts[node]));
  token.title = `${nameOf(origins[node])}: ${meaningOf(origins[node])}`;
  line.append(sign, token, probability(probabilities[node]), make("span", "from", nameOf(origins[node])));
  line.append(make("span", "why", reason(step, node)));
  return line;
}

function probability(share) {
  const box = make("span", "chance");
  if (share === null) {
    box.append(make("span", "number", "–"));
    box.title = "The drafter reports no probability.";
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
