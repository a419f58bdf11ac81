// One answer: the server is asked to write it, or to go on with it, and to stop. `live.js` hears how it comes.
import { ApiError, ask } from "./api.js";
import { announce, notice, randomId } from "./dom.js";
import { errorText, storedError } from "./errors.js";
import { t } from "./i18n.js";
import { emit, pickedModel, state, until } from "./state.js";

const AGAIN = 1500; // ms until a server that was out of reach, or a conversation that was busy, is asked again

const placeOf = (conversation) => `api/ui/conversations/${conversation.id}/answers`;

const passes = ({ status }) => [0, 401, 429].includes(status) || status >= 500; // another time it may go

/** Wait until the conversation is stored as it is here. Rejects when `signal` says so, or it cannot be. */
async function stored(conversation, { waiting }, signal) {
  await conversation.save();
  while (conversation.unsaved || !conversation.id) {
    if (conversation.trouble && !passes(conversation.trouble)) throw conversation.trouble;
    waiting.unsent(true);
    await until(["saved", "online", "key"], signal, 5 * AGAIN);
    await conversation.save();
  }
}

/** Send the request until the server accepts or refuses it. A repeated request does not start a second answer. */
async function request(conversation, answering, body, signal) {
  for (;;) {
    try {
      await stored(conversation, answering, signal);
      return await ask("POST", placeOf(conversation), { body }); // not to be broken off: it might have begun
    } catch (error) {
      signal.throwIfAborted();
      if (error.status === 0 || error.status === 401) {
        if (error.status === 401) emit("key-needed");
        answering.waiting.unsent(true);
        await until(["online", "key"], signal, AGAIN);
      } else if (error.code === "answer_running") {
        await until(["settled"], signal, AGAIN);
      } else if ([429, 503].includes(error.status) && !answering.waiting.isTooLong) {
        await answering.waiting.pause(error.wait, signal);
      } else {
        throw error;
      }
    }
  }
}

/** Have the server write a message; `before` is what it was, if it goes on. Never throws. */
async function write(conversation, fields, body, before = null) {
  const controller = new AbortController();
  const answering = conversation.expect(fields, controller);
  emit("changed", conversation);
  announce(t("answering"));
  const isOurs = () => conversation.answering === answering; // and not yet the server's
  try {
    const { answer: begun, version } = await request(conversation, answering, body, controller.signal);
    if (controller.signal.aborted) {
      if (isOurs()) began(conversation, begun, version);
      stop(conversation);
    } else if (isOurs()) {
      began(conversation, begun, version);
    }
  } catch (error) {
    if (isOurs()) refused(conversation, error, before);
  }
}

function began(conversation, answer, version) {
  if (!conversation.advance(version)) conversation.catchUp(version).catch(() => {});
  conversation.adopt(answer);
  conversation.answering.mine = true;
  emit("changed", conversation);
}

/** The server does not write it. */
function refused(conversation, error, before) {
  if (error.code === "answer_exists") { // it did: only its reply was lost
    conversation.settle({});
    conversation.catchUp(0, true).catch(() => {});
  } else if (before) {
    conversation.settle(before);
    if (error.name !== "AbortError") notice(t("failed", { reason: errorText(storedError(error)) }), "bad");
  } else if (error.name === "AbortError") {
    conversation.settle();
  } else {
    if (!(error instanceof ApiError)) throw error;
    conversation.fail({ finish: "error", error: storedError(error) });
    conversation.save();
  }
  emit("changed", conversation);
  emit("settled", conversation);
}

/** Ask for an answer to the message `parent`. The conversation shows its place from the first moment on. */
export async function answer(conversation, parent) {
  if (conversation.answering || conversation.refuses()) return;
  const fields = { id: randomId(), parent, model: state.model };
  await write(conversation, fields, fields);
}

/** Whether the context holds no more after a message, as far as is known. */
export function isFull({ stats }) {
  const size = pickedModel()?.context;
  return Boolean(size && stats?.prompt_tokens && stats.prompt_tokens + stats.completion_tokens >= size);
}

/** Whether an answer ended before it was whole, and nothing follows it yet. */
export const canContinue = (conversation, message) =>
  message.role === "assistant" && message.content.trim() !== "" && ["length", "cancelled", "error", "interrupted"].includes(message.finish)
  && !isFull(message)
  && !conversation.data.messages.some(({ parent }) => parent === message.id);

/** Go on with an answer where it ended. */
export async function continueAnswer(conversation, message) {
  if (conversation.answering || !canContinue(conversation, message) || conversation.refuses()) return;
  await write(conversation, message, { id: message.id, model: state.model, continue: true }, { ...message });
}

/** Stop what is written, by whichever page it was asked for. */
export async function stop(conversation) {
  const answering = conversation?.answering;
  if (!answering) return;
  if (answering.controller) { // the server has not said yet that it begins: when it does, it is stopped
    answering.controller.abort();
    return;
  }
  try {
    await ask("DELETE", `${placeOf(conversation)}/${answering.message.id}`);
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else if (error.status && error.status !== 404) notice(error.message, "bad");
  }
}
