// What the model's context holds: tokens are counted before a message is sent, and where they are too many the reader
// says what to do about it. What is left out stays in the conversation, and a line there says that the model does not see it.
import { ask } from "./api.js";
import { by, el, notice } from "./dom.js";
import { number, t } from "./i18n.js";
import { emit, on, pickedModel, state } from "./state.js";
import { path } from "./tree.js";

const EACH = 16; // tokens at most that a template puts around a message
const FIRST = 256; // and those before the first one
const ANSWER = 1024; // tokens that are kept free for an answer when the oldest messages are left out

const bytes = (text) => new TextEncoder().encode(text).length; // no fewer than its tokens

/** The id of the first message of a branch that the model is shown; null for all of them. */
export function startOf(data, leaf = data.current) {
  const shown = path(data, leaf);
  const start = shown.findLast((message) => message.context_start)?.context_start;
  return shown.some(({ id }) => id === start) && shown[0].id !== start ? start : null;
}

/** The messages of a branch that the model is shown. */
function visible(data, leaf) {
  const shown = path(data, leaf);
  const start = startOf(data, leaf);
  return start ? shown.slice(shown.findIndex(({ id }) => id === start)) : shown;
}

/** As the server tells them to the model; see `conversation_turns.turns`. */
function turns(data, shown) {
  const result = data.system ? [{ role: "system", content: data.system }] : [];
  const told = shown.filter((message, index) => (message.content || message.images) && (message.role !== "user" || shown[index + 1]?.content !== ""));
  for (const { role, content, images } of told) {
    const ids = (images ?? []).map(({ id }) => id);
    const last = result.at(-1);
    if (last?.role === role) {
      last.content += `\n\n${content}`;
      last.images = [...(last.images ?? []), ...ids];
    } else {
      result.push({ role, content, ...(ids.length ? { images: ids } : {}) });
    }
  }
  return result;
}

const pictured = (messages) => messages.some(({ images }) => images?.length);

/** Tokens of messages as the model is shown them, as the server counts; Infinity for what is too long to be counted. */
async function count(data, shown) {
  const messages = turns(data, shown);
  try {
    return (await ask("POST", pictured(messages) ? "api/ui/tokens" : "tokenize", { body: { model: state.model, messages } })).count;
  } catch (error) {
    if (error.code === "context_length_exceeded") return Infinity;
    throw error;
  }
}

/** Tokens of a branch at most, without asking the server, which alone knows those of a picture. */
function atMost(data, shown) {
  const last = shown.findLastIndex(({ stats, model }) => stats?.prompt_tokens && model === state.model);
  const counted = last < 0 ? FIRST + bytes(data.system) : Number(shown[last].stats.prompt_tokens) + Number(shown[last].stats.completion_tokens);
  if (pictured(shown.slice(last + 1))) return Infinity;
  return shown.slice(last + 1).reduce((sum, { content }) => sum + bytes(content) + EACH, counted || Infinity);
}

/** How many of the oldest messages must be left out so that the rest has room, and an answer too; null if the last one alone has none. */
async function tooMany(data, shown, context) {
  const room = context - Math.min(ANSWER, Math.floor(context / 4));
  const starts = shown.flatMap(({ role }, index) => (role === "user" && index ? [index] : []));
  let [low, high] = [0, starts.length]; // the first start that fits is in this range
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await count(data, shown.slice(starts[middle])) <= room) high = middle;
    else low = middle + 1;
  }
  if (low < starts.length) return starts[low];
  return starts.length && await count(data, shown.slice(starts.at(-1))) < context ? starts.at(-1) : null;
}

/**
 * Check whether a message fits the context. Return null if it does, else {tokens, context, leaveOut, start}: `leaveOut` is
 * the number of messages to omit, `start` the first one that stays: null for the new one itself.
 */
export async function overflowOf(conversation, content, images = []) {
  const context = pickedModel()?.context;
  const { data } = conversation;
  const shown = [...visible(data, data.current), { role: "user", content, ...(images.length ? { images } : {}) }];
  if (!context || atMost(data, shown) < context) return null;
  const tokens = await count(data, shown);
  if (tokens < context) return null;
  const leaveOut = await tooMany(data, shown, context);
  return { tokens, context, leaveOut, start: shown[leaveOut]?.id ?? null };
}

/** Leave out the oldest messages of a question that did not fit, then do something with it. */
export async function leaveOut(conversation, question, then) {
  const context = pickedModel()?.context;
  const shown = visible(conversation.data, question.id);
  try {
    const many = await tooMany(conversation.data, shown, context);
    if (many === null) {
      notice(t("too_long_alone", { context: number(context) }), "bad");
      return;
    }
    question.context_start = shown[many].id;
    conversation.touch(question);
    then();
  } catch (error) {
    if (error.status) notice(error.message, "bad");
  }
}

/** Show the model all messages again. */
export function tellAll(conversation) {
  for (const message of path(conversation.data)) {
    if (!message.context_start) continue;
    delete message.context_start;
    conversation.touch(message);
  }
  emit("changed", conversation);
  conversation.save();
}

/** Say above the composer that a message does not fit, and offer what can be done: `send` is told the first message that stays. */
export function offerRoom({ tokens, context, leaveOut: many, start }, send) {
  const box = by("overflow");
  const close = () => { box.hidden = true; box.replaceChildren(); };
  const act = (text, done, properties = {}) => el("button", { type: "button", onclick: () => { close(); done(); }, ...properties }, text);
  const edit = () => by("composer-text").focus();
  box.replaceChildren(
    el("p", { role: "alert" }, t(Number.isFinite(tokens) ? "too_full" : "too_full_more", { tokens: number(tokens), context: number(context) }),
      many === null ? ` ${t("too_long_alone", { context: number(context) })}` : ""),
    el("div", { class: "row" },
      many === null ? null : act(t("leave_out_n", { n: number(many), count: many }), () => send(start)),
      act(t("edit_message"), edit)));
  box.hidden = false;
  box.querySelector("button").focus();
}

export function startFit() {
  const close = () => { by("overflow").hidden = true; by("overflow").replaceChildren(); };
  on("opened", close);
  on("language", close);
  by("composer-text").addEventListener("input", close);
}
