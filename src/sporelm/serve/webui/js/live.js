// What goes on in the open conversation, told by the server as it happens: an answer that comes, whichever page asked
// for it, and what other pages change. A connection that breaks is made again, and goes on where it was.
import { follow } from "./api.js";
import { announce, notice } from "./dom.js";
import { errorText } from "./errors.js";
import { t } from "./i18n.js";
import { emit, on, state, until } from "./state.js";
import { find } from "./tree.js";

const DRAW_EVERY = 60; // ms between two drawings
const AGAIN = 1000; // ms until a connection that broke is made again
let followed = null; // {conversation, id, controller}

/** An answer has begun, or is under way when the page comes to it. */
async function begun(conversation, { answer, waiting, version }) {
  if (!find(conversation.data, answer.id) && !find(conversation.data, answer.parent)) await conversation.catchUp(version);
  const { mine, controller, message } = conversation.answering ?? {};
  conversation.adopt(answer);
  if (mine || (controller && message.id === answer.id)) conversation.answering.mine = true;
  if (Object.keys(waiting).length) conversation.answering.waiting.told(waiting);
  else conversation.answering.waiting.over();
  emit("changed", conversation);
}

/** An answer has ended, which this page has shown as it came; `error` is of one that could not be continued. */
function ended(conversation, message, mine, error) {
  emit("changed", conversation);
  emit("settled", conversation);
  if (conversation !== state.conversation) return;
  const reason = errorText(message.error ?? error);
  if (error) notice(t("failed", { reason }), "bad");
  announce(message.error ? t("failed", { reason }) : t("answered", { text: message.content.slice(0, 2000) }));
  if (mine && message.error) emit("refused", conversation);
}

let drawing = 0;

function grown(conversation, { content, reasoning, stats, waiting }) {
  const { message, waiting: wait } = conversation.answering;
  if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
  if (content) message.content += content;
  message.stats = stats;
  if (!Object.keys(waiting).length) wait.over();
  else wait.told(waiting);
  drawing ||= setTimeout(() => { drawing = 0; emit("grown", conversation, message); }, DRAW_EVERY);
}

async function heard(conversation, name, data) {
  const writing = conversation.answering;
  const { answer, version } = data;
  if (name === "delta") {
    if (writing && !writing.controller) grown(conversation, data);
  } else if (name === "end") {
    if (!conversation.advance(version)) await conversation.catchUp(version);
    const shown = conversation.answering?.message.id === answer.id ? conversation.answering : null;
    if (shown) ended(conversation, conversation.settle(answer), shown.mine, data.error);
  } else if (answer?.role) { // an answer that begins, or that is under way
    await begun(conversation, data);
    if (!(name === "answer" && conversation.advance(version))) await conversation.catchUp(version);
  } else if (name === "state" && !answer && writing && !writing.controller) { // it ended while nothing was heard
    await conversation.catchUp(version, true);
    if (conversation.answering?.message === writing.message) ended(conversation, conversation.settle({}), writing.mine);
  } else {
    await conversation.catchUp(version);
  }
}

async function listen(conversation, signal) {
  const { id: its } = conversation;
  const lose = () => { if (conversation.id === its) conversation.lose(); };
  let last = null;
  for (;;) {
    try {
      for await (const { name, id, data } of follow(`api/ui/conversations/${conversation.id}/events`, { signal, last })) {
        if (name === "deleted") return lose();
        await heard(conversation, name, data);
        last = name === "end" ? null : id ?? last;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 404) return lose();
      if (error.status === undefined) throw error;
      if (error.status === 401) emit("key-needed");
    }
    await until(["online", "key"], signal, AGAIN).catch(() => {});
    if (signal.aborted) return;
  }
}

/** Follow the open conversation while the page is visible: browsers allow few connections at a time. */
function attend() {
  const { conversation } = state;
  const wanted = document.visibilityState === "visible" && conversation?.id ? conversation : null;
  if (followed?.conversation === wanted && followed?.id === wanted?.id) return;
  followed?.controller.abort();
  followed = null;
  if (!wanted) return;
  const mine = { conversation: wanted, id: wanted.id, controller: new AbortController() };
  followed = mine;
  listen(wanted, mine.controller.signal).finally(() => { if (followed === mine) followed = null; });
}

export function startLive() {
  on("ended", ended); // only its result was received
  for (const name of ["opened", "saved", "online"]) on(name, attend);
  on("key", () => { followed?.controller.abort(); followed = null; attend(); });
  document.addEventListener("visibilitychange", attend);
}
