// What can be done with a message: answer it again, show another version, go on with it, take it away.
import { answer, continueAnswer } from "./answer.js";
import { askSure } from "./dialogs.js";
import { t } from "./i18n.js";
import { emit } from "./state.js";
import { children, leaf } from "./tree.js";

const node = (id) => document.querySelector(`#messages article[data-id="${id}"]`);

/** Whether someone walks through the messages by keyboard, and so must find the focus on one afterwards. */
const byKeyboard = () => Boolean(document.activeElement?.matches("#messages :focus-visible"));

function afterwards(conversation, inside, id) {
  if (inside) node(id ?? conversation.data.current)?.focus({ preventScroll: true });
}

/** Answer a question again, or the question of an answer. */
export function regenerate(conversation, message) {
  if (conversation.answering) return;
  const inside = byKeyboard();
  answer(conversation, message.role === "user" ? message.id : message.parent);
  afterwards(conversation, inside);
  conversation.save();
}

export function goOn(conversation, message) {
  if (conversation.answering) return;
  const inside = byKeyboard();
  continueAnswer(conversation, message);
  afterwards(conversation, inside, message.id);
}

export function show(conversation, message) {
  if (!message || conversation.answering) return;
  const inside = byKeyboard();
  conversation.set("current", leaf(conversation.data, message.id));
  emit("changed", conversation);
  afterwards(conversation, inside, message.id);
  conversation.save();
}

/** How many messages follow one, on all its branches. */
function following(data, id) {
  const direct = children(data, id);
  return direct.reduce((sum, child) => sum + following(data, child.id), direct.length);
}

/** Take a message away with all that follow it, once that was said to be meant. */
export async function remove(conversation, message) {
  if (conversation.answering) return;
  const inside = byKeyboard();
  const n = following(conversation.data, message.id);
  const text = n ? t("delete_following", { n }) : t("delete_one");
  if (!(await askSure(t("delete_message"), text, t("delete"))) || conversation.answering) return;
  conversation.remove(message);
  emit("changed", conversation);
  afterwards(conversation, inside);
  conversation.save();
}
