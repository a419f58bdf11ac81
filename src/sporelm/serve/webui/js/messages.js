// The messages of the open conversation: drawn once each, then only changed where they differ.
import { answer, stop } from "./answer.js";
import { by, copyText, el, icon, iconButton } from "./dom.js";
import { number, t } from "./i18n.js";
import { MarkdownView } from "./markdown.js";
import { emit, on, state } from "./state.js";
import { find, leaf, path, versions } from "./tree.js";

const NEAR = 80; // px from the end within which the page follows an answer
const views = new Map(); // message id -> View
const scroller = by("scroller");
let following = true;

class View {
  #drawn = null;

  constructor(message) {
    this.message = message;
    this.body = el("div", { class: "body" });
    this.thoughts = el("div", { class: "thoughts-text" });
    this.thinking = el("summary");
    this.details = el("details", { class: "thoughts", hidden: true }, this.thinking, this.thoughts);
    this.note = el("div", { class: "note", hidden: true });
    this.foot = el("div", { class: "foot" });
    this.node = el("article", { class: message.role, tabIndex: -1, data: { id: message.id } }, this.details, this.body, this.note, this.foot);
    this.markdown = message.role === "assistant" ? new MarkdownView(this.body) : null;
  }

  /** Draw what changed of the text. */
  text(live) {
    const { content, reasoning } = this.message;
    const now = `${content.length}.${reasoning?.length ?? 0}.${live}`;
    if (now === this.#drawn) return;
    this.#drawn = now;
    if (this.markdown) this.markdown.update(content, !live);
    else this.body.textContent = content;
    this.body.classList.toggle("waiting", live && !content && !reasoning);
    this.details.hidden = !reasoning;
    if (reasoning) {
      this.thoughts.textContent = reasoning;
      this.thinking.textContent = t(live && !content ? "thinking" : "thought");
    }
  }

  draw(conversation, index, count) {
    const live = conversation.answering?.message === this.message;
    const who = t(this.message.role === "user" ? "you" : "assistant");
    this.node.setAttribute("aria-label", t("message_label", { who, index: index + 1, count }));
    this.node.setAttribute("aria-busy", String(live));
    this.node.classList.toggle("live", live);
    this.text(live);
    this.drawNote(conversation);
    this.foot.replaceChildren(...this.actions(conversation, live));
  }

  drawNote(conversation) {
    const { finish, error } = this.message;
    const told = finish === "error" ? t("failed", { reason: error }) : finish === "length" ? t("cut") : finish === "cancelled" ? t("stopped") : "";
    this.note.hidden = !told;
    this.note.classList.toggle("bad", finish === "error");
    this.note.replaceChildren(told);
    if (finish === "error") this.note.append(el("button", { type: "button", onclick: () => regenerate(conversation, this.message) }, t("retry")));
  }

  actions(conversation, live) {
    const all = versions(conversation.data, this.message);
    const place = all.indexOf(this.message);
    const turn = (step) => () => show(conversation, all[place + step]);
    const branch = all.length > 1 && el("span", { class: "branch", role: "group", aria: { label: t("branch", { index: place + 1, count: all.length }) } },
      iconButton("left", t("previous_branch"), turn(-1), { disabled: place === 0, data: { act: "previous" } }),
      el("span", {}, `${place + 1}/${all.length}`),
      iconButton("right", t("next_branch"), turn(1), { disabled: place === all.length - 1, data: { act: "next" } }));
    if (live) return [branch || "", this.stats()];
    const copy = iconButton("copy", t("copy"), async () => {
      await copyText(this.message.content);
      copy.replaceChildren(icon("check"));
      setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
    }, { data: { act: "copy" } });
    return [
      branch || "",
      el("span", { class: "acts" }, copy,
        iconButton("edit", t("edit"), () => this.edit(conversation), { data: { act: "edit" } }),
        this.message.role === "assistant" ? iconButton("again", t("regenerate"), () => regenerate(conversation, this.message), { data: { act: "again" } }) : null),
      this.stats(),
    ];
  }

  stats() {
    const { stats } = this.message;
    if (this.message.role !== "assistant" || !stats) return "";
    const parts = [
      stats.tokens_per_s && t("speed", { n: number(stats.tokens_per_s, stats.tokens_per_s < 100 ? 1 : 0) }),
      stats.first_token_s !== undefined && t("first_token", { n: number(stats.first_token_s, 2) }),
      stats.completion_tokens && t("tokens", { n: number(stats.completion_tokens) }),
      stats.prompt_tokens && t("cached", { n: number(stats.cached_tokens ?? 0), total: number(stats.prompt_tokens) }),
    ].filter(Boolean);
    return el("span", { class: "stats" }, parts.map((part) => el("span", {}, part)));
  }

  /** Change the text in place. A question's new text is a branch and is asked; an answer's is a branch alone. */
  edit(conversation) {
    if (conversation.answering) return;
    const area = el("textarea", { value: this.message.content, aria: { label: t("edit_text") } });
    const asks = this.message.role === "user";
    const close = () => { form.remove(); this.node.classList.remove("editing"); this.node.focus(); };
    const done = () => {
      const content = area.value.trim();
      if (!content) return;
      close();
      if (content === this.message.content && !asks) return;
      const message = conversation.add({ parent: this.message.parent, role: this.message.role, content });
      if (asks) answer(conversation, message.id);
      else emit("changed", conversation);
      conversation.save();
    };
    const form = el("form", { class: "editor", onsubmit: (event) => { event.preventDefault(); done(); } }, area,
      el("div", { class: "row" }, el("span", { class: "space" }), el("button", { type: "button", onclick: close }, t("cancel")),
        el("button", { class: "strong" }, t(asks ? "save_send" : "save"))));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && !event.isComposing && (asks ? !event.shiftKey : event.ctrlKey || event.metaKey)) { event.preventDefault(); done(); }
    });
    this.node.classList.add("editing");
    this.body.before(form);
    grow(area);
    area.addEventListener("input", () => grow(area));
    area.focus();
  }
}

/** As high as its text, up to what CSS allows. */
export function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

/** Whether someone walks through the messages by keyboard, and so must find the focus on one afterwards. */
const byKeyboard = () => Boolean(document.activeElement?.matches("#messages :focus-visible"));

export function regenerate(conversation, message) {
  if (conversation.answering) return;
  const inside = byKeyboard();
  answer(conversation, message.parent);
  if (inside) views.get(conversation.data.current)?.node.focus({ preventScroll: true });
  conversation.save();
}

export function show(conversation, message) {
  if (!message || conversation.answering) return;
  const inside = byKeyboard();
  conversation.set("current", leaf(conversation.data, message.id));
  emit("changed", conversation);
  if (inside) views.get(message.id)?.node.focus({ preventScroll: true });
  conversation.save();
}

export function editLast(conversation) {
  const last = path(conversation.data).findLast((message) => message.role === "user");
  if (last) views.get(last.id)?.edit(conversation);
}

function follow() {
  if (following) scroller.scrollTop = scroller.scrollHeight;
  by("to-end").hidden = following;
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
  nodes.forEach((node, index) => { if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null); });
  context(conversation);
  follow();
}

function context(conversation) {
  const last = path(conversation.data).findLast((message) => message.stats?.prompt_tokens);
  const used = last ? last.stats.prompt_tokens + last.stats.completion_tokens : 0;
  const size = state.models.find((model) => model.id === state.model)?.context;
  const text = !used ? "" : size ? t("context_use", { used: number(used), size: number(size) }) : t("context_used", { used: number(used) });
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
  view.text(true);
  view.foot.lastElementChild?.classList.contains("stats") ? view.foot.lastElementChild.replaceWith(view.stats()) : view.foot.append(view.stats());
  follow();
}

export function startMessages() {
  on("opened", opened);
  on("changed", render);
  on("grown", grown);
  on("asked", () => { following = true; });
  on("models", () => state.conversation && context(state.conversation));
  on("language", () => state.conversation && opened(state.conversation));
  let before = 0;
  scroller.addEventListener("scroll", () => {
    const atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
    if (atEnd) following = true;
    else if (scroller.scrollTop < before) following = false; // only a reader scrolls up
    before = scroller.scrollTop;
    by("to-end").hidden = following || atEnd;
  }, { passive: true });
  by("to-end").addEventListener("click", () => { following = true; follow(); });
  by("stop").addEventListener("click", () => stop(state.conversation));
}

/** The message in focus, and what its buttons do. */
export function focused() {
  const node = document.activeElement?.closest?.("article");
  return node && state.conversation && find(state.conversation.data, node.dataset.id) ? node : null;
}
