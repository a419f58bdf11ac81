// Markdown into the page, piece by piece: while a text grows only its last blocks are read and drawn again.
//
// What the model wrote is never trusted: of HTML only a few bare tags are kept, the rest is shown as it was written,
// pictures become links (a picture's address could tell others what was said), and DOMPurify goes over the result.
import { Marked } from "../vendor/marked/marked.esm.js";
import "../vendor/dompurify/purify.min.js";
import { finishCode } from "./code.js";
import { el, icon } from "./dom.js";
import { finishFormulas, formulas } from "./formula.js";
import { t } from "./i18n.js";
import { frameTables } from "./table.js";

const escaped = (text) =>
  text.replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[sign]);

const BARE_TAG = /<(?!\/?(?:b|br|del|details|em|i|kbd|mark|strong|sub|summary|sup|u)\s*\/?>)/gi;
const ALLOWED = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "code", "del", "details", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr",
    "i", "kbd", "li", "mark", "ol", "p", "pre", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th",
    "thead", "tr", "u", "ul"],
  ALLOWED_ATTR: ["align", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"],
  RETURN_DOM_FRAGMENT: true,
};

const marked = new Marked({
  gfm: true,
  extensions: formulas(escaped),
  renderer: {
    html: ({ text }) => text.replace(BARE_TAG, "&lt;"),
    code: ({ text, lang }) =>
      `<pre data-language="${escaped((lang ?? "").split(/\s/)[0].slice(0, 40))}"><code>${escaped(text)}</code></pre>`,
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

function draw(token, links, done) {
  const tokens = Object.assign([token], { links });
  const node = document.createElement("div");
  node.className = "block";
  node.append(DOMPurify.sanitize(marked.parser(tokens), ALLOWED));
  setDirections(node);
  drawTasks(node);
  finishFormulas(node);
  frameTables(node);
  finishCode(node, done);
  return node;
}

/** Each block takes the direction of its first letter; code and formulas run from left to right and do not count for it. */
function setDirections(node) {
  for (const part of node.querySelectorAll("code, pre, [data-formula]")) part.dir = "ltr";
  for (const part of node.children) if (part.localName !== "table" && !part.dir) part.dir = "auto";
}

/** A box in place of the bullet of each task. */
function drawTasks(node) {
  for (const item of node.querySelectorAll("li")) {
    const [first] = item.firstElementChild?.matches("p:first-child") && !item.firstChild.data?.trim() ? item.firstElementChild.childNodes : item.childNodes;
    const sign = first?.nodeType === Node.TEXT_NODE && /^\s*([☐☑])\s*/.exec(first.data);
    if (!sign) continue;
    const done = sign[1] === "☑";
    first.data = first.data.slice(sign[0].length);
    item.classList.add("task");
    first.before(el("span", { class: "box", role: "img", aria: { label: t(done ? "task_done" : "task_open") } }, done ? icon("check") : null));
  }
}

export class MarkdownView {
  #container;
  #blocks = []; // {raw, node, links, whole}, as they are drawn
  #fixed = 0; // blocks that no longer change
  #start = 0; // where the text of the others begins

  constructor(container) {
    this.#container = container;
  }

  /** Show a text. It goes on from what was shown before, unless `done` says that it is whole: then all is compared. */
  update(given, done = false) {
    const text = given.replace(/\r\n?/g, "\n");
    if (done) this.#fixed = this.#start = 0;
    const tokens = marked.lexer(text.slice(this.#start));
    tokens.forEach((token, index) => this.#place(this.#fixed + index, token, tokens.links, done));
    for (const block of this.#blocks.splice(this.#fixed + tokens.length)) block.node.remove();
    if (!done) this.#fix(tokens);
  }

  #place(place, token, links, done) {
    const block = this.#blocks[place];
    const known = JSON.stringify(links); // what [name] stands for may be said only at the end of a text
    const same = block?.raw === token.raw && (block.links === known || !token.raw.includes("["));
    if (same && (block.whole || !done)) return;
    const node = draw(token, links, done);
    if (block) block.node.replaceWith(node);
    else this.#container.append(node);
    this.#blocks[place] = { raw: token.raw, node, links: known, whole: done || token.type !== "code" };
  }

  /** All but the last two blocks stay as they are: what comes can change no earlier one. */
  #fix(tokens) {
    const last = tokens.flatMap((token, index) => (token.type === "space" ? [] : [index])).at(-2) ?? 0;
    for (const token of tokens.slice(0, last)) this.#start += token.raw.length;
    this.#fixed += last;
  }
}
