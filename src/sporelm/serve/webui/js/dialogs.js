// Dialogs: the settings, the list of shortcuts, a question, and the API key.
import { apiKey, isKey, keyRefused, setApiKey } from "./api.js";
import { by, el, iconButton, kept } from "./dom.js";
import { language, LANGUAGES, number, setLanguage, t } from "./i18n.js";
import { SHORTCUTS } from "./shortcuts.js";
import { emit, openOne, state } from "./state.js";

// name: [least, most, step, what holds where nothing is set]
const SAMPLING = {
  temperature: [0, 5, 0.05, 0.8],
  top_p: [0.01, 1, 0.01, 0.95],
  top_k: [0, 1_000_000, 1, 40],
  min_p: [0, 1, 0.01, 0],
  repetition_penalty: [0.1, 10, 0.01, 1],
  presence_penalty: [-2, 2, 0.1, 0],
  frequency_penalty: [-2, 2, 0.1, 0],
  max_tokens: [1, 10_000_000, 1, ""],
  seed: [0, 2 ** 32 - 1, 1, null],
};

const head = (name, title, close = () => by(name).close()) => el("div", { class: "dialog-head" }, el("h1", { id: `${name}-title` }, title),
  iconButton("close", t("close"), close));

/** Ask before something that cannot be undone; true if it is to be done. The focus is on the button that cancels. */
export function askSure(title, text, act) {
  const dialog = by("ask");
  const answer = (value) => () => { dialog.close(value); };
  dialog.role = "alertdialog";
  dialog.setAttribute("aria-describedby", "ask-text");
  dialog.replaceChildren(el("h1", { id: "ask-title" }, title), el("p", { id: "ask-text" }, text),
    el("div", { class: "row" }, el("span", { class: "space" }), el("button", { type: "button", autofocus: true, onclick: answer("") }, t("cancel")),
      el("button", { type: "button", class: "danger", onclick: answer("yes") }, act)));
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

/** Ask for the API key; says so if one was given that the server does not know. */
export function askKey() {
  const dialog = by("ask");
  if (dialog.open) return;
  dialog.role = "dialog";
  dialog.removeAttribute("aria-describedby");
  const field = el("input", { type: "password", id: "key-field", autocomplete: "current-password", autofocus: true, required: true, maxLength: 600 });
  const remember = el("input", { type: "checkbox", id: "key-remember" });
  const wrong = el("p", { class: "bad", role: "alert", hidden: !keyRefused() }, t("key_refused"));
  const take = (event) => {
    wrong.hidden = isKey(field.value);
    if (!wrong.hidden) { event.preventDefault(); field.select(); return; }
    setApiKey(field.value, remember.checked);
    emit("key");
  };
  const form = el("form", { method: "dialog", onsubmit: take }, el("h1", { id: "ask-title" }, t("key_needed")), wrong,
    el("p", {}, t("key_text")),
    el("label", { class: "block-label" }, el("span", {}, t("api_key")), field),
    el("label", { class: "tick" }, remember, el("span", {}, t("key_remember"), el("small", {}, t("key_remember_about")))),
    el("div", { class: "row" }, el("span", { class: "space" }),
      el("button", { type: "button", onclick: () => dialog.close() }, t("cancel")), el("button", { class: "strong" }, t("open"))));
  dialog.replaceChildren(form);
  dialog.addEventListener("close", () => { if (!apiKey()) emit("key-declined"); }, { once: true });
  dialog.showModal();
}

/** The settings' line about the key. */
function keyLine() {
  const there = Boolean(apiKey());
  const about = !there ? "key_none" : kept("local", "key") ? "key_kept" : "key_for_tab";
  const act = (name, then) => el("button", { type: "button", onclick: () => { by("settings").close(); then(); } }, t(name));
  return el("div", { class: "line" }, el("span", {}, t("api_key"), el("small", {}, t(about))),
    el("span", { class: "row" }, there ? act("key_forget", () => { setApiKey(""); emit("key"); }) : null,
      act(there ? "key_change" : "key_give", askKey)));
}

/** Say beside a field what it takes, where it holds something else; whether it is right. */
function told(field, wrong, text) {
  const right = field.checkValidity();
  wrong.textContent = right ? "" : text;
  wrong.hidden = right;
  field.ariaInvalid = right ? null : "true";
  if (right) field.removeAttribute("aria-describedby");
  else field.setAttribute("aria-describedby", wrong.id);
  return right;
}

/** Close the settings, once what was typed counts; a field with a value that cannot be keeps them open. */
function closeSettings() {
  document.activeElement?.blur();
  const wrong = by("settings").querySelector("input:invalid");
  if (wrong) wrong.focus();
  else by("settings").close();
}

function samplingFields(settings, changed) {
  const fields = Object.entries(SAMPLING).map(([name, [min, max, step, usual]]) => {
    const field = el("input", { type: "number", min, max, step: step === 1 ? 1 : "any", value: settings[name] ?? "", placeholder: usual ?? t("random"), id: `set-${name}`, inputMode: "decimal" });
    const wrong = el("small", { class: "bad", role: "alert", id: `wrong-${name}`, hidden: true });
    field.addEventListener("input", () => { if (field.checkValidity()) told(field, wrong); });
    field.addEventListener("change", () => {
      const said = (value) => number(value, Number.isInteger(value) ? 0 : 2);
      const range = { min: said(min), max: said(max) };
      if (!told(field, wrong, t(step === 1 ? "range_whole" : "range", range))) return;
      changed(name, field.value === "" ? null : Number(field.value));
    });
    return el("label", {}, el("span", {}, t(name)), field, wrong);
  });
  const stop = el("input", { value: settings.stop ?? "", dir: "auto", id: "set-stop", maxLength: 200 });
  stop.addEventListener("change", () => changed("stop", stop.value || null));
  return el("div", { class: "fields" }, fields, el("label", {}, el("span", {}, t("stop_text")), stop));
}

function choice(label, options, value, change) {
  const select = el("select", {}, Object.entries(options).map(([name, text]) => el("option", { value: name, selected: name === value }, text)));
  select.addEventListener("change", () => change(select.value));
  return el("label", { class: "line" }, el("span", {}, label), select);
}

function setTheme(theme) {
  kept("local", "theme", theme === "auto" ? null : theme);
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

export function openSettings() {
  const dialog = by("settings");
  const open = openOne();
  const { data } = open;
  const changed = (name, value) => {
    const settings = { ...data.settings, [name]: value };
    if (value === null) delete settings[name];
    open.set("settings", settings);
    emit("set", open);
  };
  const system = el("textarea", { rows: 4, autofocus: true, dir: "auto", value: data.system, id: "set-system", maxLength: 100_000 });
  system.addEventListener("change", () => { open.set("system", system.value); emit("set", open); });
  const chat = state.page === "chat";
  dialog.replaceChildren(
    head("settings", t("settings"), closeSettings),
    el("section", {}, el("h2", {}, t(chat ? "this_chat" : "this_text")),
      chat ? el("label", { class: "block-label" }, el("span", {}, t("system")), system, el("small", {}, t("system_about"))) : null,
      samplingFields(data.settings, changed), el("small", {}, t("sampling_about"))),
    el("section", {}, el("h2", {}, t("this_browser")),
      choice(t("theme"), { auto: t("auto"), light: t("light"), dark: t("dark") }, kept("local", "theme") ?? "auto", setTheme),
      choice(t("language"), LANGUAGES, language, (name) => { setLanguage(name); emit("language"); openSettings(); }), keyLine()),
    el("div", { class: "row" }, el("span", { class: "space" }), el("button", { type: "button", class: "strong", onclick: closeSettings }, t("done"))));
  if (!dialog.open) dialog.showModal();
}

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const shownKey = (key) => key.split("+").map((part) => el("kbd", {}, part === "Mod" ? (MAC ? "⌘" : "Ctrl") : part));

export function openShortcuts() {
  const dialog = by("shortcuts");
  dialog.replaceChildren(head("shortcuts", t("shortcuts")),
    el("dl", {}, SHORTCUTS.map(([keys, text]) => el("div", {}, el("dt", {}, t(text)),
      el("dd", {}, keys.split(" ").map((key) => el("span", { class: "keys" }, shownKey(key))))))));
  if (!dialog.open) dialog.showModal();
}

export function startDialogs() {
  by("shortcuts").addEventListener("click", (event) => { if (event.target === by("shortcuts")) by("shortcuts").close(); });
  by("settings").addEventListener("click", (event) => { if (event.target === by("settings")) closeSettings(); });
  by("settings").addEventListener("cancel", (event) => { event.preventDefault(); closeSettings(); });
  by("open-settings").addEventListener("click", openSettings);
  by("open-shortcuts").addEventListener("click", openShortcuts);
}
