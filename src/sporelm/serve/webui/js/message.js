// One message as the page shows it: its text, its files, what is told below it, and its buttons.
import { answer, canContinue, isFull } from "./answer.js";
import { fileView, isTooLong, joined, parted } from "./attachments.js";
import { copyText, el, icon, iconButton } from "./dom.js";
import { errorText } from "./errors.js";
import { leaveOut, startOf, tellAll } from "./fit.js";
import { number, t } from "./i18n.js";
import { MarkdownView } from "./markdown.js";
import { pictureButtons } from "./pictures.js";
import { emit, pickedModel } from "./state.js";
import { children, find, versions } from "./tree.js";
import { goOn, regenerate, remove, show } from "./turns.js";

const LONG = 1500; // characters of a question, from which on its end is folded away
const LINES = 18;

/** As high as its text, up to what CSS allows. In the composer the text has a row of its own once it has several lines. */
export function grow(area) {
  area.style.height = "auto";
  const field = area.closest(".field");
  if (field && !area.value) field.classList.remove("tall");
  else if (field && area.scrollHeight > 2 * parseFloat(getComputedStyle(area).lineHeight)) field.classList.add("tall");
  area.style.height = `${area.scrollHeight + 2}px`;
}

export class View {
  #drawn = null;
  #asked = null; // what a question's body shows
  #pictured = null; // ids of the pictures that are shown

  constructor(message) {
    this.message = message;
    this.body = el("div", { class: "body", dir: message.role === "user" ? "auto" : null });
    this.files = el("div", { class: "files-of", hidden: true });
    this.pictures = el("div", { class: "pictures", hidden: true });
    this.thoughts = el("div", { class: "thoughts-text", dir: "auto" });
    this.thinking = el("summary");
    this.details = el("details", { class: "thoughts", hidden: true }, this.thinking, this.thoughts);
    this.wait = el("div", { class: "wait", hidden: true }, el("span", { class: "dot" }), el("span"));
    this.note = el("div", { class: "note", hidden: true });
    this.foot = el("div", { class: "foot" });
    this.node = el("article", { class: message.role, tabIndex: -1, data: { id: message.id } },
      this.details, this.pictures, this.files, this.body, this.wait, this.note, this.foot);
    this.markdown = message.role === "assistant" ? new MarkdownView(this.body) : null;
  }

  /** Draw what changed of the text; `answering` while it is this message that comes. */
  text(answering) {
    const { content, reasoning } = this.message;
    const waits = answering && !answering.waiting.isOver;
    this.wait.hidden = !waits;
    if (waits) this.wait.lastElementChild.textContent = answering.waiting.text;
    const now = `${content.length}.${reasoning?.length ?? 0}.${Boolean(answering)}`;
    if (now === this.#drawn) return;
    this.#drawn = now;
    if (this.markdown) this.markdown.update(content, !answering);
    else this.question(content);
    this.drawPictures();
    this.details.hidden = !reasoning;
    if (reasoning) {
      this.thoughts.textContent = reasoning;
      this.thinking.textContent = t(answering && !content ? "thinking" : "thought");
    }
  }

  drawPictures() {
    const images = this.message.images ?? [];
    const now = images.map(({ id }) => id).join();
    if (now === (this.#pictured ?? "")) return;
    this.#pictured = now;
    this.pictures.replaceChildren(...pictureButtons(images));
    this.pictures.classList.toggle("several", images.length > 1);
    this.pictures.hidden = !images.length;
  }

  /** A question's files, and its text, of a long one the beginning. */
  question(content) {
    if (content === this.#asked) return;
    this.#asked = content;
    const { files, text } = parted(content);
    this.files.replaceChildren(...files.map(fileView));
    this.files.hidden = !files.length;
    this.body.textContent = text;
    this.body.hidden = !text;
    this.more?.remove();
    const long = text.length > LONG || text.split("\n").length > LINES;
    this.body.classList.toggle("folded", long);
    if (!long) return;
    this.more = el("button", { type: "button", class: "quiet unfold", aria: { expanded: "false" }, onclick: () => {
      const folded = this.body.classList.toggle("folded");
      this.more.textContent = t(folded ? "show_all" : "show_less");
      this.more.setAttribute("aria-expanded", String(!folded));
    } }, t("show_all"));
    this.body.after(this.more);
  }

  draw(conversation, index, count) {
    const answering = conversation.answering?.message === this.message ? conversation.answering : null;
    const who = t(this.message.role === "user" ? "you" : "assistant");
    this.node.setAttribute("aria-label", t("message_label", { who, index: index + 1, count }));
    this.node.setAttribute("aria-busy", String(Boolean(answering)));
    this.node.classList.toggle("live", Boolean(answering));
    this.text(answering);
    this.drawNote(conversation);
    this.drawStart(conversation);
    this.foot.replaceChildren(...this.actions(conversation, Boolean(answering)));
  }

  drawNote(conversation) {
    const { finish, error, role, content } = this.message;
    const { answering } = conversation;
    const waitsElsewhere = answering && answering.message !== this.message && role === "assistant" && !finish && !content;
    const told = {
      __proto__: null, // an imported file may give any reason
      error: () => t("failed", { reason: errorText(error) }),
      length: () => t(isFull(this.message) ? "full" : "cut"),
      cancelled: () => t("stopped"),
      interrupted: () => t("interrupted"),
    }[finish]?.() ?? (waitsElsewhere ? t("waits_elsewhere") : "");
    this.note.hidden = !told;
    this.note.classList.toggle("bad", finish === "error");
    const offer = (name, act) => el("button", { type: "button", onclick: act }, t(name));
    const buttons = el("span", { class: "offers" });
    if (canContinue(conversation, this.message)) {
      const more = offer("continue", () => goOn(conversation, this.message));
      more.dataset.act = "continue";
      buttons.append(more);
    }
    const isOverflow = finish === "error" && error?.code === "context_length_exceeded";
    if (isOverflow && pickedModel()?.chat !== false) {
      const question = find(conversation.data, this.message.parent);
      buttons.append(offer("edit_message", () => emit("edit", question)));
      buttons.append(offer("leave_out", () => leaveOut(conversation, question, () => regenerate(conversation, this.message))));
    }
    if (finish === "error" && pickedModel()?.chat === false) buttons.append(offer("complete", () => { location.hash = "#/complete"; }));
    else if (finish === "error") buttons.append(offer("retry", () => regenerate(conversation, this.message)));
    this.note.replaceChildren(el("span", {}, told), buttons);
  }

  /** Above the first message that the model is shown, where others before it are left out. */
  drawStart(conversation) {
    const start = startOf(conversation.data);
    const isStart = start === this.message.id;
    if (isStart === Boolean(this.cut)) return;
    this.cut?.remove();
    this.cut = isStart ? el("div", { class: "cut" }, el("span", {}, t("left_out")),
      el("button", { type: "button", class: "quiet", onclick: () => tellAll(conversation) }, t("tell_all"))) : null;
    if (isStart) this.node.prepend(this.cut);
  }

  branch(conversation) {
    const all = versions(conversation.data, this.message);
    if (all.length < 2) return "";
    const place = all.indexOf(this.message);
    const turn = (step) => () => show(conversation, all[place + step]);
    return el("span", { class: "branch", role: "group", aria: { label: t("branch", { index: place + 1, count: all.length }) } },
      iconButton("left", t("previous_branch"), turn(-1), { disabled: place === 0, data: { act: "previous" } }),
      el("span", {}, `${place + 1}/${all.length}`),
      iconButton("right", t("next_branch"), turn(1), { disabled: place === all.length - 1, data: { act: "next" } }));
  }

  /** The buttons; while the answer comes their place is kept free, so that nothing moves when it ends. */
  actions(conversation, live) {
    const { content, role, images } = this.message;
    const copy = iconButton("copy", t("copy"), async () => {
      await copyText(this.message.content);
      copy.replaceChildren(icon("check"));
      setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
    }, { data: { act: "copy" } });
    const unanswered = role === "user" && !children(conversation.data, this.message.id).length;
    const acts = el("span", { class: "acts" },
      content || live ? copy : null,
      content || images || live ? iconButton("edit", t("edit"), () => this.edit(conversation), { data: { act: "edit" } }) : null,
      role === "assistant" || unanswered
        ? iconButton("again", t("regenerate"), () => regenerate(conversation, this.message), { data: { act: "again" } }) : null,
      iconButton("bin", t("delete_message_short"), () => remove(conversation, this.message), { data: { act: "delete" } }));
    acts.inert = live;
    return [this.branch(conversation), acts, this.stats()];
  }

  stats() {
    const { stats } = this.message;
    if (this.message.role !== "assistant" || !stats) return "";
    const parts = [
      this.message.model,
      stats.tokens_per_s && t("speed", { n: number(stats.tokens_per_s, stats.tokens_per_s < 100 ? 1 : 0) }),
      stats.first_token_s !== undefined && t("first_token", { n: number(stats.first_token_s, 2) }),
      stats.completion_tokens && t("tokens", { n: number(stats.completion_tokens) }),
      stats.prompt_tokens && stats.cached_tokens > 0 && t("cached", { n: number(stats.cached_tokens), total: number(stats.prompt_tokens) }),
    ].filter(Boolean);
    return el("span", { class: "stats" }, parts.map((part) => el("span", {}, part)));
  }

  drawStats() {
    const last = this.foot.lastElementChild;
    if (last?.classList.contains("stats")) last.replaceWith(this.stats());
    else this.foot.append(this.stats());
  }

  /** Change the text in place. A question's new text is a branch and is asked; an answer's is a branch alone. */
  edit(conversation) {
    if (conversation.answering || this.node.classList.contains("editing") || conversation.refuses()) return;
    const asks = this.message.role === "user";
    const { files, text } = asks ? parted(this.message.content) : { files: [], text: this.message.content };
    const area = el("textarea", { value: text, dir: "auto", aria: { label: t("edit_text") } });
    const close = () => { form.remove(); this.node.classList.remove("editing"); this.node.focus(); };
    const done = () => {
      if (isTooLong(area.value.trim())) return;
      const content = joined(files, area.value.trim());
      const { images } = this.message;
      if ((!content && !images) || conversation.answering) return; // another question was asked meanwhile: this one waits here
      close();
      if (content === this.message.content && !asks) return;
      const message = conversation.add({ parent: this.message.parent, role: this.message.role, content, ...(images ? { images } : {}) });
      if (asks) answer(conversation, message.id);
      else emit("changed", conversation);
      conversation.save();
    };
    const form = el("form", { class: "editor", onsubmit: (event) => { event.preventDefault(); done(); } }, area,
      el("div", { class: "row" }, el("span", { class: "space" }), el("button", { type: "button", onclick: close }, t("cancel")),
        el("button", { class: "strong" }, t(asks ? "save_send" : "save"))));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key !== "Enter" || event.isComposing || (asks ? event.shiftKey : !event.ctrlKey && !event.metaKey)) return;
      event.preventDefault();
      done();
    });
    this.node.classList.add("editing");
    this.body.before(form);
    grow(area);
    area.addEventListener("input", () => grow(area));
    area.focus();
  }
}
