// The keyboard: what works everywhere, and what works on the message in focus.
import { stop } from "./answer.js";
import { by } from "./dom.js";
import { editLast, focused } from "./messages.js";
import { state } from "./state.js";

/** Keys and the name of what they do, as the list shows them; Mod is Ctrl, or Command on a Mac. */
export const SHORTCUTS = [
  ["Enter", "key_send"],
  ["Shift+Enter", "key_line"],
  ["Esc", "key_stop"],
  ["Mod+Shift+O", "key_new"],
  ["Mod+K", "key_search"],
  ["Mod+B", "key_side"],
  ["Mod+,", "key_settings"],
  ["Mod+/ ?", "key_help"],
  ["/", "key_focus"],
  ["↑", "key_last"],
  ["Alt+↑ Alt+↓", "key_walk"],
  ["← →", "key_branch"],
  ["E", "key_edit"],
  ["R", "key_again"],
  ["C", "key_copy"],
  ["G", "key_go_on"],
  ["Del", "key_delete"],
];

const typing = (node) => node?.matches?.("input, textarea, select, [contenteditable]");

function walk(step) {
  const all = [...document.querySelectorAll("#messages > article")];
  if (!all.length) return;
  const place = all.indexOf(focused());
  if (place + step >= all.length) by("composer-text").focus();
  else all[place < 0 ? (step < 0 ? all.length - 1 : 0) : Math.max(0, place + step)].focus();
}

/** What a key of its own does; false if nothing. */
function plain(event) {
  const message = focused();
  const act = message && { ArrowLeft: "previous", ArrowRight: "next", e: "edit", r: "again", c: "copy", g: "continue", Delete: "delete" }[event.key];
  if (act && message.matches(":focus-visible")) { // a click that only marks text must not answer again
    message.querySelector(`[data-act=${act}]:not(:disabled)`)?.click();
    return true;
  }
  if (event.key === "/") by(state.page === "chat" ? "composer-text" : "complete-text").focus();
  else if (event.key === "?") by("open-shortcuts").click();
  else return false;
  return true;
}

function withMod(event, acts) {
  const key = event.key.toLowerCase();
  if (event.shiftKey && key === "o") acts.fresh();
  else if (event.shiftKey) return false;
  else if (key === "k") acts.search();
  else if (key === "b") acts.toggleSidebar();
  else if (key === ",") by("open-settings").click();
  else if (key === "/") by("open-shortcuts").click();
  else return false;
  return true;
}

/** `acts`: fresh, search, toggleSidebar. */
export function startShortcuts(acts) {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    let done = false;
    if (event.ctrlKey || event.metaKey) done = !event.altKey && withMod(event, acts);
    else if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) { walk(event.key === "ArrowUp" ? -1 : 1); done = true; }
    else if (event.key === "Escape") done = acts.escape();
    else if (event.key === "ArrowUp" && event.target === by("composer-text") && !event.target.value) { editLast(state.conversation); done = true; }
    else if (!event.altKey && !typing(event.target)) done = plain(event);
    if (done) event.preventDefault();
  });
}

/** Escape ends what goes on. */
export function stopAnswer() {
  if (!state.conversation?.answering) return false;
  stop(state.conversation);
  return true;
}
