// Tables of markdown: each in a frame that scrolls by itself, with its words whole.
import { el } from "./dom.js";
import { t } from "./i18n.js";

const MAX_WIDTH = 26; // columns of a word that stays on one line: ideographs count as two
const WIDE = /[\p{Ideographic}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\uff00-\uff60]/u;
const CAN_BREAK = new RegExp(`${WIDE.source}|[^\\p{L}\\p{N}\\p{M}]`, "u"); // a browser may break a line beside these

const columns = (word) => [...word].reduce((sum, letter) => sum + (WIDE.test(letter) ? 2 : 1), 0);

/** Keep each word of a cell on one line, also one with hyphens or ideographs; words too long for that break anywhere. */
function keepWordsWhole(cell) {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  const nodes = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (!node.parentElement.closest("[data-formula]")) nodes.push(node);
  for (const node of nodes) {
    const parts = node.data.split(/(\s+)/).map((word) => {
      const width = columns(word);
      if (width > MAX_WIDTH) return WIDE.test(word) ? word : el("span", { class: "long-word" }, word);
      return width > 1 && word.trim() && CAN_BREAK.test(word) ? el("span", { class: "word" }, word) : word;
    });
    if (parts.some((part) => typeof part !== "string")) node.replaceWith(...parts);
  }
}

/** Give the tables below a node their frames. */
export function frameTables(root) {
  for (const table of root.querySelectorAll("table")) {
    for (const cell of table.querySelectorAll("th, td")) {
      keepWordsWhole(cell);
      cell.classList.toggle("prose", columns(cell.textContent) > 2 * MAX_WIDTH);
    }
    const frame = el("div", { class: "table", role: "group", tabIndex: 0, dir: "auto", aria: { label: t("table") } });
    table.replaceWith(frame);
    frame.append(table);
  }
}
