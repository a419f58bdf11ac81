// Formulas: $...$, $$...$$, \(...\) and \[...\], drawn by KaTeX, which is loaded when the first one appears.

const INLINE = [
  [/^\$\$([^$]+?)\$\$/, true],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\\\(([\s\S]+?)\\\)/, false],
  [/^\$(?!\s)((?:\\[^\n]|[^$\\\n])+?)(?<!\s)\$(?![\w$])/, false], // not the prices in "$5 and $10"
];
const BLOCK = [/^ {0,3}\$\$([\s\S]+?)\$\$[ \t]*(?:\n+|$)/, /^ {0,3}\\\[([\s\S]+?)\\\][ \t]*(?:\n+|$)/];

// What would set a style by attribute, which the page's policy forbids.
const MACROS = { "\\pmb": "\\boldsymbol{#1}", "\\fcolorbox": "\\boxed{\\colorbox{#2}{#3}}" };

/** Extensions of marked that put `span data-formula` where a formula stands. */
export function formulas(escaped) {
  const renderer = (token) => {
    const span = `<span data-formula="${token.display ? "display" : "inline"}">${escaped(token.text)}</span>`;
    return token.type === "formulaBlock" ? `<p>${span}</p>` : span;
  };
  return [
    {
      name: "formulaBlock", level: "block", renderer,
      start: (text) => text.match(/^ {0,3}(?:\$\$|\\\[)/m)?.index,
      tokenizer(text) {
        const match = BLOCK.map((pattern) => pattern.exec(text)).find(Boolean);
        return match && { type: "formulaBlock", raw: match[0], text: match[1].trim(), display: true };
      },
    },
    {
      name: "formula", level: "inline", renderer,
      start: (text) => text.match(/\$|\\[([]/)?.index,
      tokenizer(text) {
        for (const [pattern, display] of INLINE) {
          const match = pattern.exec(text);
          if (match) return { type: "formula", raw: match[0], text: match[1].trim(), display };
        }
        return undefined;
      },
    },
  ];
}

let loading = null;

function load() {
  loading ??= new Promise((resolve) => {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = new URL("../vendor/katex/katex.min.css", import.meta.url);
    document.head.append(link);
    resolve(import("../vendor/katex/katex.min.js"));
  }).then(() => finishFormulas(document));
}

/** Draw the formulas below a node, now or once KaTeX is there; one that it cannot read stays as it was written. */
export function finishFormulas(root) {
  const found = root.querySelectorAll("[data-formula]:not(.drawn)");
  if (!found.length) return;
  if (!globalThis.katex) {
    load();
    return;
  }
  for (const node of found) {
    const text = node.textContent;
    node.classList.add("drawn");
    try {
      const displayMode = node.dataset.formula === "display";
      globalThis.katex.render(text, node, { displayMode, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20, macros: { ...MACROS } });
    } catch {
      node.textContent = text;
      node.classList.add("unreadable");
    }
  }
}
