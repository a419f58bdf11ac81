// The messages of the open conversation: drawn once each, then only changed where they differ.
import { stop } from "./answer.js";
import { by, el } from "./dom.js";
import { number, t } from "./i18n.js";
import { View } from "./message.js";
import { on, state } from "./state.js";
import { find, path } from "./tree.js";

const views = new Map(); // message id -> View
const scroller = by("scroller");
const SETTLES = 1500; // ms after a drawing in which formulas and colours may still change its height
let following = true;
let placed = -1; // where the page itself scrolled to
let drawnAt = 0;

export function editLast(conversation) {
  const last = path(conversation.data).findLast((message) => message.role === "user");
  if (last) views.get(last.id)?.edit(conversation);
}

const toEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;

function follow() {
  if (following) {
    scroller.scrollTop = scroller.scrollHeight;
    placed = scroller.scrollTop;
  }
  by("to-end").hidden = following || toEnd() < 8;
}

function render(conversation) {
  if (conversation !== state.conversation) return;
  const shown = path(conversation.data);
  by("empty").hidden = shown.length > 0;
  const nodes = shown.map((message, index) => {
    let view = views.get(message.id);
    if (view?.message !== message) views.set(message.id, (view = new View(message)));
    view.draw(conversation, index, shown.length);
    return view.node;
  });
  const list = by("messages");
  for (const node of [...list.children]) if (!nodes.includes(node)) node.remove();
  nodes.forEach((node, index) => {
    if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null);
  });
  context(conversation);
  drawnAt = performance.now();
  follow();
}

function context(conversation) {
  const last = path(conversation.data).findLast((message) => message.stats?.prompt_tokens);
  const used = last ? Number(last.stats.prompt_tokens) + Number(last.stats.completion_tokens) || 0 : 0;
  const size = state.models.find((model) => model.id === state.model)?.context;
  const known = size ? t("context_use", { used: number(Math.min(used, size)), size: number(size) }) : t("context_used", { used: number(used) });
  const text = used ? known : "";
  const meter = used && size ? el("meter", { max: size, value: used, high: size * 0.85, aria: { hidden: "true" } }) : "";
  by("context").replaceChildren(meter, text);
}

function opened(conversation) {
  views.clear();
  by("messages").replaceChildren();
  following = true;
  render(conversation);
}

function grown(conversation, message) {
  if (conversation !== state.conversation) return;
  const view = views.get(message.id);
  if (!view?.node.isConnected) return;
  view.text(conversation.answering);
  view.drawStats();
  context(conversation);
  follow();
}

/** Scroll to a message and leave the page there: to a range in it, in the upper third, or else to its beginning. */
export function scrollToMessage(article, range) {
  following = false;
  article.scrollIntoView({ block: "start" });
  const place = () => {
    if (following || !article.isConnected) return;
    const box = (range?.startContainer.isConnected ? range : article).getBoundingClientRect();
    const top = box.top - scroller.getBoundingClientRect().top;
    scroller.scrollTop += range ? top - scroller.clientHeight / 3 : top;
  };
  place();
  requestAnimationFrame(() => { place(); requestAnimationFrame(place); }); // once what was out of sight is laid out
}

/** Stop following the answer when the user scrolls up, until the end of the page is reached again. */
function startScrolling() {
  let before = 0;
  scroller.addEventListener("scroll", () => {
    if (toEnd() < 4) following = true;
    else if (scroller.scrollTop < before && Math.abs(scroller.scrollTop - placed) > 1) following = false;
    before = scroller.scrollTop;
    by("to-end").hidden = following || toEnd() < 8;
  }, { passive: true });
  scroller.addEventListener("wheel", (event) => { if (event.deltaY < 0 && scroller.scrollTop > 0) following = false; }, { passive: true });
  by("to-end").addEventListener("click", () => { following = true; follow(); by("composer-text").focus({ preventScroll: true }); });
  new ResizeObserver(follow).observe(scroller); // the window, a phone's keyboard, a composer that grows
  new ResizeObserver(() => {
    if (state.conversation?.answering || performance.now() - drawnAt < SETTLES) follow();
  }).observe(by("messages"));
}

export function startMessages() {
  on("opened", opened);
  on("changed", render);
  on("grown", grown);
  on("edit", (message) => views.get(message?.id)?.edit(state.conversation));
  on("asked", () => { following = true; });
  on("models", () => {
    if (!state.conversation) return;
    context(state.conversation);
    for (const view of views.values()) if (view.message.finish === "error") view.drawNote(state.conversation); // what is offered
  });
  on("language", () => state.conversation && opened(state.conversation));
  startScrolling();
  by("stop").addEventListener("click", () => stop(state.conversation));
}

/** The message in focus, and what its buttons do. */
export function focused() {
  const node = document.activeElement?.closest?.("article");
  return node && state.conversation && find(state.conversation.data, node.dataset.id) ? node : null;
}
