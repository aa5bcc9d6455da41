// Run the chat view.

import { Answer } from "./answer.js";
import { say, showFigures, showLegend, Speaker } from "./meter.js";
import { make } from "./origins.js";
import { about, ask } from "./stream.js";
import { showMarks, showStep } from "./tree.js";

const at = (id) => document.getElementById(id);
const messages = [];
const answers = new WeakMap(); // element -> Answer
let facts = { model: "", drafter: "", drafters: [], wants_key: false, plain_seconds: null };
let running = null; // AbortController of the current answer
let shown = null; // selected token, whose step is shown

function body() {
  const system = at("system").value.trim();
  const history = system ? [{ role: "system", content: system }, ...messages] : [...messages];
  const drafter = at("drafter").value;
  const request = {
    messages: history, stream: true, trace: true,
    temperature: Number(at("temperature").value) || 0, max_tokens: Math.max(1, Math.round(Number(at("length").value)) || 512),
  };
  if (drafter === "none") request.speculation = false;
  else if (drafter !== facts.drafter) request.speculation = drafter;
  return request;
}

async function send(event) {
  event.preventDefault();
  const question = at("question").value.trim();
  if (!question || running !== null) return;
  at("question").value = "";
  grow();
  at("welcome").hidden = true;
  messages.push({ role: "user", content: question });
  const asked = make("article", "message question");
  asked.setAttribute("aria-label", "Question");
  asked.append(make("div", "text", question));
  const answer = new Answer(facts.plain_seconds);
  answers.set(answer.element, answer);
  at("log").append(asked, answer.element);
  running = new AbortController();
  busy(true);
  await receive(answer, question);
  running = null;
  busy(false);
}

async function receive(answer, question) {
  const speaker = new Speaker();
  let ended = "";
  try {
    for await (const event of ask(body(), at("key").value, running.signal)) {
      const stick = nearEnd();
      answer.add(event);
      speaker.add(event.choices?.[0]?.delta?.content ?? "");
      showFigures(answer);
      showLegend(answer.counts);
      if (stick) at("log").scrollTop = at("log").scrollHeight;
    }
    await learn();
    if (answer.plain === null) answer.plain = facts.plain_seconds;
    if (answer.done?.finish_reason === "length") ended = "token limit reached";
  } catch (error) {
    if (error.name === "AbortError") ended = "stopped";
    else {
      fail(answer, error);
      if (!answer.text) { // no text arrived: the user can send the question again
        messages.pop();
        at("question").value ||= question;
        grow();
        return;
      }
    }
  }
  messages.push({ role: "assistant", content: answer.text });
  answer.finish(ended);
  showFigures(answer);
  speaker.finish(answer.note.textContent);
  at("log").scrollTop = at("log").scrollHeight;
}

function fail(answer, error) {
  const box = make("p", "error", error.message);
  box.setAttribute("role", "alert");
  answer.element.append(box);
  if (error.status === 401) {
    at("settings").open = true;
    at("key").focus();
  }
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
  at("log").setAttribute("aria-busy", String(is));
  if (is) say("The answer is being generated.");
  else if (document.activeElement === document.body || document.activeElement === at("stop")) at("question").focus();
}

function begin() {
  running?.abort();
  messages.length = 0;
  for (const message of at("log").querySelectorAll(".message")) message.remove();
  at("welcome").hidden = false;
  close();
  at("question").focus();
  say("New conversation.");
}

// Show the draft tree of a token's step.
function open(token) {
  const answer = answers.get(token.closest(".answer"));
  const step = answer?.steps.get(Number(token.dataset.step));
  if (step === undefined) return;
  shown?.removeAttribute("aria-current");
  shown = token;
  shown.setAttribute("aria-current", "true");
  at("step-title").textContent = `Step ${step.step}`;
  showStep(at("step"), step, Number(token.dataset.token));
  document.body.classList.add("inspecting");
  at("earlier").disabled = !answer.steps.has(step.step - 1);
  at("later").disabled = !answer.steps.has(step.step + 1);
}

function close() {
  document.body.classList.remove("inspecting");
  at("step-title").textContent = "Draft tree";
  showMarks(at("step"));
  at("earlier").disabled = at("later").disabled = true;
  shown?.removeAttribute("aria-current");
  shown?.focus();
  shown = null;
}

// Select the first token of the previous or next step.
function turn(by) {
  const wanted = Number(shown.dataset.step) + by;
  const token = shown.closest(".text").querySelector(`.token[data-step="${wanted}"]`);
  if (token !== null) open(token);
}

function nearEnd() {
  const log = at("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function grow() {
  const box = at("question");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 200)}px`;
}

function move(event) {
  const text = event.target.closest(".answer .text");
  if (text === null) return;
  const tokens = [...text.querySelectorAll(".token")];
  const here = tokens.indexOf(event.target);
  const next = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tokens.length - 1 }[event.key];
  if (next !== undefined && tokens.length) {
    tokens[Math.min(Math.max(next, 0), tokens.length - 1)].focus();
    event.preventDefault();
  } else if ((event.key === "Enter" || event.key === " ") && here >= 0) {
    open(event.target);
    event.preventDefault();
  }
}

async function learn() {
  try {
    facts = await about("/page/about.json");
  } catch {
    return; // the next request reports the error
  }
  at("model").textContent = facts.model;
  at("key-row").hidden = !facts.wants_key;
  if (at("drafter").options.length) return;
  for (const name of facts.drafters) at("drafter").append(new Option(name === "none" ? "none (plain decoding)" : name, name));
}

at("ask").addEventListener("submit", send);
at("stop").addEventListener("click", () => running?.abort());
at("new").addEventListener("click", begin);
at("close").addEventListener("click", close);
at("earlier").addEventListener("click", () => turn(-1));
at("later").addEventListener("click", () => turn(1));
at("log").addEventListener("click", (event) => {
  const token = event.target.closest(".token[data-step]");
  if (token !== null) open(token);
});
at("log").addEventListener("keydown", move);
at("question").addEventListener("input", grow);
at("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (document.body.classList.contains("inspecting")) close();
  else running?.abort();
});
close();
learn();
