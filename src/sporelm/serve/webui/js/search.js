// The words of a search: marked in the list and in what is open, and the way to the message that was found.
import { by, el } from "./dom.js";
import { scrollToMessage } from "./messages.js";
import { emit, on } from "./state.js";
import { find, leaf, path } from "./tree.js";

const HIGHLIGHT = "search"; // its name in the style sheet
const MAX_RANGES = 2000;
const WINDOW = 120; // characters, as a snippet has

/** The words in the search field. */
export const searchWords = () => by("search").value.trim().split(/\s+/).filter(Boolean);

/** A pattern for any of the words, in any case; null without words. */
function wordPattern(words) {
  const escaped = [...words].sort((one, two) => two.length - one.length).map((word) => word.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"));
  return words.length ? new RegExp(escaped.join("|"), "giu") : null;
}

/** A text as nodes, with its matches of the search in `mark` elements. */
export function markWords(text) {
  const pattern = wordPattern(searchWords());
  if (!pattern) return [text];
  const nodes = [];
  let end = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    nodes.push(text.slice(end, index), el("mark", {}, match));
    end = index + match.length;
  }
  return [...nodes, text.slice(end)].filter((part) => part !== "");
}

/** The matches below a node as [range, score]; a match may reach over several elements. */
function matchesIn(root, pattern, words) {
  const texts = [];
  let whole = "";
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest(".katex, .code-head")) continue;
    texts.push({ node, start: whole.length });
    whole += node.data;
  }
  const found = [];
  let at = 0;
  const moveTo = (place, isEnd) => { // to the text that holds the place; an end may lie behind the last character of one
    while (at + 1 < texts.length && texts[at + 1].start + (isEnd ? 1 : 0) <= place) at += 1;
    return [texts[at].node, place - texts[at].start];
  };
  for (const { 0: match, index } of whole.matchAll(pattern)) {
    const range = document.createRange();
    range.setStart(...moveTo(index, false));
    range.setEnd(...moveTo(index + match.length, true));
    found.push([range, scoreAt(whole, index, match.length, words)]);
    if (found.length >= MAX_RANGES) break;
  }
  return found;
}

/** How well a match fits, by the rules of the snippet: words near it, then the whole phrase, then whole words. */
function scoreAt(text, index, length, words) {
  const near = text.slice(index, index + WINDOW).toLowerCase();
  const isEdge = (letter) => Number(!/[\p{L}\p{N}]/u.test(letter ?? ""));
  const lower = words.map((word) => word.toLowerCase());
  return 10 * lower.filter((word) => near.includes(word)).length + 5 * Number(near.startsWith(lower.join(" ")))
    + isEdge(text[index - 1]) + isEdge(text[index + length]);
}

/** The matches of the search in a message. */
function matchesOf(article) {
  const words = searchWords();
  const pattern = wordPattern(words);
  const parts = pattern ? [...article.querySelectorAll(":scope > .files-of, :scope > .body")] : [];
  return parts.flatMap((part) => matchesIn(part, pattern, words));
}

/** Highlight the search's words in the messages that are shown; browsers without CSS highlights only jump. */
export function highlightMatches() {
  if (!globalThis.CSS?.highlights) return;
  const found = [...by("messages").children].flatMap(matchesOf);
  if (found.length) CSS.highlights.set(HIGHLIGHT, new Highlight(...found.slice(0, MAX_RANGES).map(([range]) => range)));
  else CSS.highlights.delete(HIGHLIGHT);
}

/** Bring a message that a search found into view, on its branch, and put the focus on it. */
export function showHit(conversation, id) {
  if (!find(conversation.data, id)) return;
  if (!path(conversation.data).some((message) => message.id === id)) {
    if (conversation.answering) return; // the branch must stay
    conversation.data.current = leaf(conversation.data, id); // to look at: it is saved with the next message
    emit("changed", conversation);
  }
  const article = document.querySelector(`#messages article[data-id="${id}"]`);
  const [range] = matchesOf(article).reduce((best, match) => (match[1] > best[1] ? match : best), [null, -1]);
  const holder = range?.startContainer.parentElement;
  holder?.closest("details:not([open])")?.setAttribute("open", "");
  if (holder?.closest(".folded")) article.querySelector(".unfold").click();
  highlightMatches();
  scrollToMessage(article, range);
  article.focus({ preventScroll: true });
}

/** Select the first match in the text of a field. */
export function selectMatch(area) {
  const match = wordPattern(searchWords())?.exec(area.value);
  if (!match) return;
  area.blur();
  area.setSelectionRange(match.index, match.index + match[0].length);
  area.focus(); // which scrolls to the selection
}

export function startSearchMarks() {
  on("opened", highlightMatches);
  on("changed", highlightMatches);
}
