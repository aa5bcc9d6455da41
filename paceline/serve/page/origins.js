// Names and explanations of the token sources, by the server's keys.

export const ORIGINS = {
  target: ["Target", "chosen by the target model; every forward pass yields one such token"],
  prompt: ["Prompt", "draft token: followed the same text earlier in the conversation"],
  output: ["This answer", "draft token: followed the same text earlier in this answer"],
  datastore: ["Datastore", "draft token: followed the same text in the datastore"],
  recycled: ["Token recycling", "draft token: among the target's top tokens after the same text before"],
  window: ["Lookahead window", "draft token: from the target's own parallel (Jacobi) predictions"],
  pool: ["Phrase pool", "draft token: from a phrase of earlier steps or answers"],
  model: ["Draft model", "draft token: proposed by a small draft model"],
  draft_head: ["Draft head", "draft token: predicted from the target's hidden state"],
  grammar: ["Grammar", "draft token: the only continuation that the format of the answer allows"],
  prediction: ["Prediction", "draft token: from the text that the request predicts"],
  draft: ["Draft", "draft token of a drafter that reports no source"],
};

export const nameOf = (origin) => (ORIGINS[origin] ?? ORIGINS.draft)[0];
export const meaningOf = (origin) => (ORIGINS[origin] ?? ORIGINS.draft)[1];

// Create an element with classes and text; model output is only inserted as text, never as HTML.
export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

// Make the white space of a token visible.
export function visible(text) {
  const counted = (sign) => (run) => (run.length > 2 ? `${sign}×${run.length}` : sign.repeat(run.length));
  return text === "" ? "∅" : text.replace(/\n+/g, counted("⏎")).replace(/\t+/g, counted("⇥")).replace(/ +/g, counted("␣"));
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.095 ? 1 : 0)} %`;
}
