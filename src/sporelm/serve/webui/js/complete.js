// The page that continues a raw text: for models without a chat template, and for use without one.
// A text is kept as a conversation of kind completion, whose one message holds all of it.
import { announce, by, kept, notice } from "./dom.js";
import { Conversation } from "./conversation.js";
import { number, t } from "./i18n.js";
import { Measure } from "./measure.js";
import { emit, on, state } from "./state.js";
import { patiently, Waiting } from "./waiting.js";

const TITLE = 60; // characters of the text's beginning
const SAVED_AFTER = 1500; // ms after the last key
const PATH = "#/complete";
const MOST = 1_000_000; // characters, as the server has it

/** The sampling of a request: what was set, and nothing else. */
function sampling(settings) {
  const result = {};
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value === null || value === "" || value === undefined) continue;
    result[name] = name === "stop" ? [value] : value;
  }
  return result;
}

const area = by("complete-text");
let controller = null;
let saving = 0;
let undone = []; // texts before each answer, the latest last

const fresh = () => Conversation.fresh({ kind: "completion" });

/** Show a text by its id; without one that which was open last, or a new one. */
export async function openText(id) {
  if (!id && state.text) {
    if (state.text.id) history.replaceState(null, "", `${PATH}/${state.text.id}`);
  } else if (!id) {
    const [left, newId] = [kept("session", "text"), kept("session", "text-id")];
    take(fresh());
    if (left) {
      state.text.newId = newId ?? state.text.newId; // it may have been kept in the moment of the reload
      area.value = left;
      save();
    }
  } else if (state.text?.id !== id) {
    const isWanted = () => location.hash.endsWith(id); // no other one was asked for meanwhile
    try {
      const text = await Conversation.load(id);
      if (isWanted()) take(text);
    } catch (error) {
      if (!isWanted()) return;
      if (error.status === 401) emit("key-needed");
      else notice(error.status === 404 ? t("gone") : error.message, "bad");
      take(fresh());
      history.replaceState(null, "", PATH);
    }
  }
  if (!matchMedia("(hover: none)").matches) area.focus();
}

function take(text) {
  stopCompletion();
  controller = null;
  save();
  state.text = text;
  undone = [];
  area.value = text.data.messages[0]?.content ?? "";
  area.scrollTop = area.scrollHeight;
  showStats(text.data.messages[0]?.stats);
  running(false);
}

/** A new, empty text. */
export function startText() {
  take(fresh());
  if (state.page !== "complete") return; // it was deleted from the list beside the chat
  history.replaceState(null, "", PATH);
  emit("page");
  emit("titled");
  area.focus();
}

/** Load the newest version of the open text, if another tab or device has saved one and nothing is unsaved here. */
export async function refreshText() {
  const { text } = state;
  const rests = () => text && text === state.text && text.id && !controller && !saving && !text.unsaved;
  if (!rests()) return;
  const newest = await Conversation.load(text.id).catch(() => null);
  if (newest && rests() && newest.data.version > text.data.version) take(newest);
}

/** The text that is open, if anything of it is not kept yet. */
export function unsavedText() {
  staged();
  return state.text?.unsaved ? state.text : null;
}

/** Take what stands in the field into the conversation; whether anything is new. */
function staged(stats) {
  clearTimeout(saving);
  saving = 0;
  const { text } = state;
  if (!text) return false;
  const [message] = text.data.messages;
  const content = area.value.slice(0, MOST);
  if (content === (message?.content ?? "") && !stats) return false;
  if (message) Object.assign(message, { content });
  else text.add({ id: text.newId, parent: null, role: "user", content });
  const [kept] = text.data.messages;
  if (stats) kept.stats = stats;
  text.touch(kept);
  const title = [...content.trim().slice(0, 4 * TITLE).replace(/\s+/g, " ")].slice(0, TITLE).join("");
  if (!text.data.title && title) text.set("title", title);
  text.set("model", state.model);
  return true;
}

/** Keep what stands in the field. */
function save(stats) {
  if (!staged(stats)) return;
  state.text.save();
  emit("titled");
}

/** While someone writes: for a reload at once, for the server when there is a pause. */
function saveSoon() {
  if (!state.text?.id) draft(area.value);
  clearTimeout(saving);
  saving = setTimeout(() => save(), SAVED_AFTER);
}

/** What this tab keeps of a text that the server does not have; nothing of an empty one. */
function draft(text) {
  kept("session", "text", text || null);
  kept("session", "text-id", text ? state.text.newId : null);
}

function showStats(stats) {
  by("complete-stats").textContent = !stats ? "" : [
    stats.tokens_per_s && t("speed", { n: number(stats.tokens_per_s, stats.tokens_per_s < 100 ? 1 : 0) }),
    stats.first_token_s !== undefined && t("first_token", { n: number(stats.first_token_s, 2) }),
    t("tokens", { n: number(stats.completion_tokens) }),
    stats.prompt_tokens && stats.cached_tokens > 0 && t("cached", { n: number(stats.cached_tokens), total: number(stats.prompt_tokens) }),
  ].filter(Boolean).join(" · ");
}

function running(yes) {
  by("complete-run").hidden = yes;
  by("complete-stop").hidden = !yes;
  by("complete-new").disabled = yes;
  area.readOnly = yes;
  by("complete-undo").disabled = yes || !undone.length;
}

async function run() {
  if (controller || !area.value || !state.model) return;
  const own = new AbortController();
  controller = own;
  save();
  undone.push(area.value);
  running(true);
  announce(t("answering"));
  const measure = new Measure();
  const settings = sampling(state.text.data.settings);
  const body = { model: state.model, prompt: area.value, max_tokens: 256, ...settings, stream: true, stream_options: { include_usage: true } };
  let arrived = "";
  let said = "";
  const draw = () => {
    put(arrived);
    arrived = "";
    if (waiting.isOver) showStats(measure.stats());
    else by("complete-stats").textContent = waiting.text;
  };
  const waiting = new Waiting(draw, true);
  const timer = setInterval(draw, 60);
  try {
    for await (const chunk of patiently("v1/completions", body, own.signal, waiting)) {
      if (chunk.error) throw new Error(chunk.error.message);
      measure.counted(chunk.usage, chunk.timings);
      const text = chunk.choices?.[0]?.text;
      if (text) { waiting.over(); measure.piece(); arrived += text; said += text; saving ||= setTimeout(() => save(), SAVED_AFTER); }
    }
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else if (error.name !== "AbortError") notice(t("failed", { reason: error.message }), "bad");
  } finally {
    clearInterval(timer);
    waiting.over();
    if (controller === own) { // no other text was opened meanwhile
      draw();
      controller = null;
      if (!said) undone.pop();
      running(false);
      save(said ? measure.stats() : undefined);
      announce(t("answered", { text: said.slice(0, 2000) }));
      if (state.page === "complete" && !document.querySelector("dialog[open]")) area.focus();
    }
  }
}

/** Put text to the end, and follow it if the end was in sight. */
function put(text) {
  if (!text) return;
  const atEnd = area.scrollHeight - area.scrollTop - area.clientHeight < 40;
  area.value += text;
  if (atEnd) area.scrollTop = area.scrollHeight;
}

export function stopCompletion() {
  if (!controller) return false;
  controller.abort();
  return true;
}

export function startComplete() {
  area.maxLength = MOST;
  area.addEventListener("input", saveSoon);
  area.addEventListener("change", () => save());
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); run(); }
  });
  by("complete-run").addEventListener("click", run);
  by("complete-stop").addEventListener("click", stopCompletion);
  by("complete-new").addEventListener("click", startText);
  by("complete-undo").addEventListener("click", () => {
    area.value = undone.pop() ?? area.value;
    running(false);
    save();
    area.focus();
  });
  on("changed", (text) => { // another tab or device has changed it
    if (text !== state.text || controller || saving) return;
    area.value = text.data.messages[0]?.content ?? "";
  });
  on("saved", (text, isNew) => {
    if (isNew && text === state.text) draft("");
    if (isNew && text === state.text && state.page === "complete") history.replaceState(null, "", `${PATH}/${text.id}`);
  });
  addEventListener("pagehide", () => { if (saving && state.text?.id) staged(); }); // the page then sends it
}
