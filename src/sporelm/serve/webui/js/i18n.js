// The page's words in the reader's language.
import { kept } from "./dom.js";
import en from "./lang/en.js";
import zh from "./lang/zh.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const WORDS = { en, zh };
const TAGS = { en: "en", zh: "zh-CN" };

const chosen = kept("local", "language");
export let language = WORDS[chosen] ? chosen : navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";

/** The form of "one|several" that fits a count; a text without "|" has one form. */
function pluralForm(text, count) {
  const forms = text.split("|");
  return forms.length > 1 && new Intl.PluralRules(TAGS[language]).select(Number(count)) !== "one" ? forms[1] : forms[0];
}

const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
const isolated = (text) => (RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text); // so that it does not turn what surrounds it

/** A text by its name; `{n}` in it is replaced by `values.n`, and `values.count`, else `values.n`, chooses the plural form. */
export function t(name, values = {}) {
  const text = pluralForm(WORDS[language][name] ?? en[name] ?? name, values.count ?? values.n);
  return text.replace(/\{(\w+)\}/g, (whole, key) => (key in values ? isolated(String(values[key])) : whole));
}

/** Format a number for the language; 0 for an invalid one, which an imported file may have. */
export const number = (value, digits = 0) =>
  (Number(value) || 0).toLocaleString(TAGS[language], { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const date = (time, options) => new Date(time).toLocaleDateString(TAGS[language], options);

/** Fill in the texts, labels and placeholders of the page as it was loaded. */
export function translatePage() {
  document.documentElement.lang = TAGS[language];
  for (const node of document.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of document.querySelectorAll("[data-t-placeholder]")) node.placeholder = t(node.dataset.tPlaceholder);
  for (const node of document.querySelectorAll("[data-t-label]")) {
    node.setAttribute("aria-label", t(node.dataset.tLabel));
    if (node.tagName === "BUTTON") node.title = t(node.dataset.tLabel);
  }
}

export function setLanguage(name) {
  language = WORDS[name] ? name : "en";
  kept("local", "language", language);
  translatePage();
}
