// Where tokens come from: the words of the server, and what people are told.

export const ORIGINS = {
  target: ["Model itself", "chosen by the model without a guess: what one forward always brings"],
  prompt: ["Prompt", "guessed: it followed the same words in the conversation before this answer"],
  output: ["Own answer", "guessed: it followed the same words earlier in this answer"],
  datastore: ["Datastore", "guessed: it followed the same words in the datastore"],
  recycled: ["Recycled", "guessed: the model once named it as likely behind the same words"],
  window: ["Window", "guessed by the model itself for a place ahead"],
  pool: ["Phrase pool", "guessed: a phrase kept from earlier steps or answers"],
  model: ["Draft model", "guessed by a small draft model"],
  foreseen: ["Foreseen", "guessed: read off the model's hidden state one token early"],
  draft: ["Draft", "guessed by a drafter that does not say how"],
};

export const nameOf = (origin) => (ORIGINS[origin] ?? ORIGINS.draft)[0];
export const meaningOf = (origin) => (ORIGINS[origin] ?? ORIGINS.draft)[1];

// An element with classes and text; model text only ever goes in as text.
export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

// A token as people can see it: spaces and line ends have signs.
export function visible(text) {
  const counted = (sign) => (run) => (run.length > 2 ? `${sign}×${run.length}` : sign.repeat(run.length));
  return text === "" ? "∅" : text.replace(/\n+/g, counted("⏎")).replace(/\t+/g, counted("⇥")).replace(/ +/g, counted("␣"));
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.095 ? 1 : 0)} %`;
}
