// One answer: asked for or gone on with, read from the stream, kept now and then, and stopped.
import { ApiError, ask } from "./api.js";
import { announce, notice, randomId } from "./dom.js";
import { t } from "./i18n.js";
import { Measure } from "./measure.js";
import { emit, pickedModel, state } from "./state.js";
import { patiently, Waiting } from "./waiting.js";
import { path } from "./tree.js";

const DRAW_EVERY = 60; // ms between two drawings
const SAVE_EVERY = 2500; // ms
const MORE = 1024; // tokens at most that a stopped answer goes on for

/** The sampling of a request: what was set, and nothing else. */
export function sampling(settings) {
  const result = {};
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value === null || value === "" || value === undefined) continue;
    result[name] = name === "stop" ? [value] : value;
  }
  return result;
}

/** What is told of a branch: no answer that failed before its first word, nor its question, for turns must alternate. */
function told(shown) {
  return shown.filter((message, index) => message.content && (message.role !== "user" || shown[index + 1]?.content !== ""));
}

/** The turns of a branch as the model is told them; of questions that follow each other one is made. */
function turns(conversation, id) {
  const { system } = conversation.data;
  const result = system ? [{ role: "system", content: system }] : [];
  for (const { role, content } of told(path(conversation.data, id))) {
    const last = result.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else result.push({ role, content });
  }
  return result;
}

const STREAM = { stream: true, stream_options: { include_usage: true } };

function asked(conversation, parent) {
  const body = { model: state.model, messages: turns(conversation, parent), ...sampling(conversation.data.settings), ...STREAM };
  return ["v1/chat/completions", body];
}

/**
 * The request that goes on with an answer: the model is shown the chat to the answer's last letter, as its template
 * writes it, and completes that text.
 */
async function continued(conversation, message, signal) {
  const { model } = state;
  const { settings } = conversation.data;
  const mark = randomId(); // in place of the answer, whose words may stand elsewhere too, or be changed by a template
  const last = { role: "assistant", content: mark, ...(message.reasoning ? { reasoning_content: message.reasoning } : {}) };
  const chat = { model, messages: [...turns(conversation, message.parent), last], add_generation_prompt: false };
  const { prompt } = await ask("POST", "apply-template", { body: chat, signal });
  const place = prompt.lastIndexOf(mark);
  if (place < 0) throw new ApiError(400, t("no_continuing"), "no_continuing");
  const text = prompt.slice(0, place) + message.content.trimStart();
  const { tokens, max_model_len: context } = await ask("POST", "tokenize", { body: { model, prompt: text, add_special_tokens: false }, signal });
  const most = settings.max_tokens ?? ((message.finish === "length" && message.stats?.completion_tokens) || MORE);
  const room = Math.max(1, context - tokens.length);
  return ["v1/completions", { model, prompt: tokens, ...sampling(settings), max_tokens: Math.min(most, room), ...STREAM }];
}

/** Put a chunk's words into the message; whether there were any. */
function take(chunk, message, measure) {
  if (chunk.error) throw new ApiError(500, chunk.error.message ?? String(chunk.error), chunk.error.code ?? "");
  measure.counted(chunk.usage, chunk.timings);
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  const { content = choice.text, reasoning_content: thoughts, reasoning } = choice.delta ?? {};
  const said = Boolean(content || thoughts || reasoning);
  if (said) measure.piece();
  if (thoughts || reasoning) message.reasoning = (message.reasoning ?? "") + (thoughts || reasoning);
  if (content) message.content += content;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return said;
}

/** Read an answer to its end into `message`; `request` makes what is asked, of one that goes on `before` is what it was. Never throws. */
async function read(conversation, message, measure, request, before = null) {
  const controller = new AbortController();
  const waiting = new Waiting(() => emit("grown", conversation, message));
  conversation.answering = { controller, message, waiting };
  delete message.finish;
  delete message.error;
  emit("changed", conversation);
  announce(t("answering"));
  let refused = false;
  const saving = setInterval(() => conversation.keepAnswer(), SAVE_EVERY);
  let drawing = 0;
  const draw = () => { drawing = 0; message.stats = measure.stats(); emit("grown", conversation, message); };
  try {
    const [place, body] = await request(controller.signal);
    for await (const chunk of patiently(place, body, controller.signal, waiting)) {
      if (take(chunk, message, measure)) waiting.over();
      drawing ||= setTimeout(draw, DRAW_EVERY);
    }
    if (!message.finish) throw new ApiError(0, t("broken_off"), "broken_off");
  } catch (error) {
    refused = failed(error, message);
    if (before?.content === message.content && message.finish === "error") { // it is no worse for having been asked to go on
      notice(t("failed", { reason: message.error }), "bad");
      message.finish = before.finish;
      delete message.error;
    }
  } finally {
    clearInterval(saving);
    clearTimeout(drawing);
    waiting.over();
    message.stats = measure.stats();
    conversation.answering = null;
    conversation.touch(message);
    emit("changed", conversation);
    announce(message.error ? t("failed", { reason: message.error }) : t("answered", { text: message.content.slice(0, 2000) }));
    conversation.save();
    if (refused) emit("refused", conversation);
  }
}

/** Ask for an answer to the message `parent`. The conversation holds the answer from the first moment on. */
export async function answer(conversation, parent) {
  if (conversation.answering) return;
  const request = asked(conversation, parent);
  const message = conversation.add({ parent, role: "assistant", model: state.model });
  await read(conversation, message, new Measure(), () => request);
}

/** Whether the context holds no more after a message, as far as is known. */
export function isFull({ stats }) {
  const size = pickedModel()?.context;
  return Boolean(size && stats?.prompt_tokens && stats.prompt_tokens + stats.completion_tokens >= size);
}

/** Whether an answer ended before it was whole, and nothing follows it yet. */
export const canContinue = (conversation, message) =>
  message.role === "assistant" && message.content.trim() !== "" && ["length", "cancelled", "error"].includes(message.finish)
  && !isFull(message)
  && !conversation.data.messages.some(({ parent }) => parent === message.id);

/** Go on with an answer where it ended. */
export async function continueAnswer(conversation, message) {
  if (conversation.answering || !canContinue(conversation, message)) return;
  const before = { ...message };
  await read(conversation, message, new Measure(message.stats), (signal) => continued(conversation, before, signal), before);
}

/** Say so in the message; whether the server refused the request as it was. */
function failed(error, message) {
  if (error.name === "AbortError") {
    message.finish = "cancelled";
    return;
  }
  message.finish = "error";
  message.error = error.message || String(error);
  if (error.status === 401) emit("key-needed");
  return error.status === 400;
}

export const stop = (conversation) => conversation?.answering?.controller.abort();
