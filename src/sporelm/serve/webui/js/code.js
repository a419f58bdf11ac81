// Blocks of code: a line with the language and a button that copies, and colours from highlight.js, loaded when needed.
import { copyText, el, icon } from "./dom.js";
import { t } from "./i18n.js";

const MOST_LIVE = 12_000; // characters; a longer block is coloured when it is whole
const MOST = 200_000;
let library = null;
let loading = null;

function load() {
  loading ??= import("../vendor/highlight/highlight.min.js").then((module) => {
    library = module.default;
    for (const code of document.querySelectorAll("code[data-language]:not(.coloured)")) colour(code);
  });
}

function colour(code) {
  const { language } = code.dataset;
  if (!library) {
    load();
  } else if (library.getLanguage(language)) {
    code.classList.add("coloured");
    // highlight.js escapes what it is given and adds nothing but span elements with classes.
    code.innerHTML = library.highlight(code.textContent, { language, ignoreIllegals: true }).value;
  }
}

/** Give the code below a node its frame and its colours. */
export function finishCode(root, done) {
  for (const pre of root.querySelectorAll("pre")) {
    const code = pre.firstElementChild;
    const language = pre.dataset.language ?? "";
    const copy = el("button", { type: "button", class: "icon", title: t("copy"), aria: { label: t("copy") } }, icon("copy"));
    copy.addEventListener("click", async () => {
      await copyText(code.textContent);
      copy.replaceChildren(icon("check"));
      setTimeout(() => copy.replaceChildren(icon("copy")), 1500);
    });
    const frame = el("div", { class: language ? "code" : "code plain", dir: "ltr" }, el("div", { class: "code-head" }, language ? el("span", {}, language) : null, copy));
    pre.replaceWith(frame);
    frame.append(pre);
    pre.tabIndex = 0;
    const length = code.textContent.length;
    if (language && length < (done ? MOST : MOST_LIVE)) {
      code.dataset.language = language.toLowerCase();
      colour(code);
    }
  }
}
