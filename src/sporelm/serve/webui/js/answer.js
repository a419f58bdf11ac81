// One answer: asked for, read from the stream, measured, kept now and then, and stopped.
import { ApiError, events } from "./api.js";
import { announce } from "./dom.js";
import { t } from "./i18n.js";
import { emit, state } from "./state.js";
import { path } from "./tree.js";

const DRAW_EVERY = 60; // ms between two drawings
const SAVE_EVERY = 2500; // ms

/** The sampling of a request: what was set, and nothing else. */
export function sampling(settings) {
  const result = {};
  for (const [name, value] of Object.entries(settings ?? {})) {
    if (value === null || value === "" || value === undefined) continue;
    result[name] = name === "stop" ? [value] : value;
  }
  return result;
}

/** Measures a stream: when the first word came, how fast the others did, and what the server counted. */
export class Measure {
  #start = performance.now();
  #first = 0;
  #last = 0;
  #pieces = 0;
  #usage = null;

  piece() {
    this.#last = performance.now();
    this.#first ||= this.#last;
    this.#pieces += 1;
  }

  usage(usage) {
    if (usage) this.#usage = usage;
  }

  /** Numbers alone; until the server's own count comes, each piece counts as a token. */
  stats() {
    const seconds = (this.#last - this.#first) / 1000;
    const count = this.#usage?.completion_tokens ?? this.#pieces;
    const result = { completion_tokens: count };
    if (this.#first) result.first_token_s = (this.#first - this.#start) / 1000;
    if (count > 1 && seconds > 0) result.tokens_per_s = (count - 1) / seconds;
    if (this.#usage) {
      result.prompt_tokens = this.#usage.prompt_tokens ?? 0;
      result.cached_tokens = this.#usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    return result;
  }
}

function take(chunk, message, measure) {
  if (chunk.error) throw new ApiError(500, chunk.error.message ?? String(chunk.error), chunk.error.code ?? "");
  measure.usage(chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thoughts, reasoning } = choice.delta ?? {};
  if (content || thoughts || reasoning) measure.piece();
  if (thoughts || reasoning) message.reasoning = (message.reasoning ?? "") + (thoughts || reasoning);
  if (content) message.content += content;
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

/** What is told of a branch: no answer that failed before its first word, nor its question, for turns must alternate. */
function told(shown) {
  return shown.filter((message, index) => message.content && (message.role !== "user" || shown[index + 1]?.content !== ""));
}

function request(conversation, parent) {
  const { system, settings } = conversation.data;
  const turns = told(path(conversation.data, parent));
  const messages = turns.map(({ role, content }) => ({ role, content }));
  if (system) messages.unshift({ role: "system", content: system });
  return { model: state.model, messages, ...sampling(settings), stream: true, stream_options: { include_usage: true } };
}

/** Ask for an answer to the message `parent`. The conversation holds the answer from the first moment on. */
export async function answer(conversation, parent) {
  if (conversation.answering) return;
  const body = request(conversation, parent);
  const message = conversation.add({ parent, role: "assistant", model: state.model });
  const controller = new AbortController();
  const measure = new Measure();
  conversation.answering = { controller, message };
  emit("changed", conversation);
  announce(t("answering"));
  const saving = setInterval(() => { conversation.touch(message); conversation.save(); }, SAVE_EVERY);
  let drawing = 0;
  const draw = () => { drawing = 0; message.stats = measure.stats(); emit("grown", conversation, message); };
  try {
    for await (const chunk of events("v1/chat/completions", body, controller.signal)) {
      take(chunk, message, measure);
      drawing ||= setTimeout(draw, DRAW_EVERY);
    }
    message.finish ??= "stop";
  } catch (error) {
    failed(error, message);
  } finally {
    clearInterval(saving);
    clearTimeout(drawing);
    message.stats = measure.stats();
    conversation.answering = null;
    conversation.touch(message);
    emit("changed", conversation);
    announce(message.error ? t("failed", { reason: message.error }) : t("answered", { text: message.content.slice(0, 2000) }));
    conversation.save();
  }
}

function failed(error, message) {
  if (error.name === "AbortError") {
    message.finish = "cancelled";
    return;
  }
  message.finish = "error";
  message.error = error.message || String(error);
  if (error.status === 401) emit("key-needed");
}

export const stop = (conversation) => conversation?.answering?.controller.abort();
