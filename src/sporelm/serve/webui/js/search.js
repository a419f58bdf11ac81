// The words of a search: marked in the list and in what is open, and the way to the message that was found.
import { by, el } from "./dom.js";
import { scrollToMessage } from "./messages.js";
import { emit, on } from "./state.js";
import { find, leaf, path } from "./tree.js";

const HIGHLIGHT = "search"; // its name in the style sheet
const MAX_RANGES = 2000;

/** The words in the search field. */
export const searchWords = () => by("search").value.trim().split(/\s+/).filter(Boolean);

/** A pattern for any of the words, in any case; null without words. */
function wordPattern(words) {
  const escaped = [...words].sort((one, two) => two.length - one.length).map((word) => word.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"));
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

/** Ranges of the matches below a node; a match may reach over several elements. */
function matchRanges(root, pattern) {
  const texts = [];
  let whole = "";
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest(".katex, .code-head")) continue;
    texts.push({ node, start: whole.length });
    whole += node.data;
  }
  const ranges = [];
  let at = 0;
  const moveTo = (place, isEnd) => { // to the text that holds the place; an end may lie behind the last character of one
    while (at + 1 < texts.length && texts[at + 1].start + (isEnd ? 1 : 0) <= place) at += 1;
    return [texts[at].node, place - texts[at].start];
  };
  for (const { 0: match, index } of whole.matchAll(pattern)) {
    const range = document.createRange();
    range.setStart(...moveTo(index, false));
    range.setEnd(...moveTo(index + match.length, true));
    ranges.push(range);
    if (ranges.length >= MAX_RANGES) break;
  }
  return ranges;
}

const searchedParts = (article) => article.querySelectorAll(":scope > .files-of, :scope > .body");

/** Highlight the search's words in the messages that are shown; browsers without CSS highlights only jump. */
export function highlightMatches() {
  if (!globalThis.CSS?.highlights) return;
  const pattern = wordPattern(searchWords());
  const ranges = [];
  if (pattern) for (const article of by("messages").children) for (const part of searchedParts(article)) ranges.push(...matchRanges(part, pattern));
  if (ranges.length) CSS.highlights.set(HIGHLIGHT, new Highlight(...ranges.slice(0, MAX_RANGES)));
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
  const pattern = wordPattern(searchWords());
  const [range] = pattern ? [...searchedParts(article)].flatMap((part) => matchRanges(part, pattern)) : [];
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
