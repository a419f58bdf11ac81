// The list of conversations: search, open, rename, delete, export and import.
import { ask, askText } from "./api.js";
import { askSure } from "./dialogs.js";
import { announce, by, download, el, icon, iconButton, kept, notice } from "./dom.js";
import { fileName, markdownOf } from "./export.js";
import { date, t } from "./i18n.js";
import { unpacked } from "./images.js";
import { highlightMatches, markWords } from "./search.js";
import { emit, on, openOne, state } from "./state.js";

const PATH = "api/ui/conversations";
const PAGE = 60;
const SEARCHED_AFTER = 200; // ms after the last key
const DAY = 86_400_000; // ms
let rows = [];
let total = 0;
let searchTimer = 0; // until what is typed is searched for
let searching = Promise.resolve();
let asked = 0; // the latest request's number: an older one's reply is of no use

const query = () => by("search").value.trim();
export const narrow = () => matchMedia("(max-width: 760px)").matches;

export async function refresh(more = false) {
  const mine = (asked += 1);
  const offset = more ? rows.length : 0;
  const limit = more ? PAGE : Math.min(500, Math.max(PAGE, rows.length));
  try {
    const page = await ask("GET", `${PATH}?${new URLSearchParams({ q: query(), offset, limit })}`);
    if (mine !== asked) return;
    rows = more ? [...rows, ...page.conversations] : page.conversations;
    total = page.total;
    draw();
  } catch (error) {
    if (error.status === 401) { // do not show the conversations of another key
      rows = [];
      by("list").replaceChildren(); // there may be some
      emit("key-needed");
    } else if (error.status) notice(error.message, "bad"); // else a bar says it
  }
}

/** Look for what stands in the search field. */
function search() {
  clearTimeout(searchTimer);
  searchTimer = 0;
  rows = [];
  searching = refresh().then(() => { if (query()) announce(t("found", { n: total })); });
  highlightMatches();
  return searching;
}

/** Empty the search field; false if it was. */
export function clearSearch() {
  if (!by("search").value) return false;
  by("search").value = "";
  search();
  return true;
}

/** Open the first conversation that was found, at the message that was. */
async function openFirst() {
  await (searchTimer ? search() : searching);
  if (query()) by("list").querySelector("a")?.click();
}

function group(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "today";
  if (time >= midnight - DAY) return "yesterday";
  return time >= midnight - 7 * DAY ? "week" : "older";
}

/** Draw the list; not under a menu or a new title that is being typed, but when that is over. */
function draw() {
  const list = by("list");
  if (list.querySelector(".menu, .rename")) return;
  const place = document.activeElement?.closest?.("#list li")?.dataset.id;
  if (!rows.length) {
    list.replaceChildren(el("p", { class: "muted none" }, t(query() ? "not_found" : "none")));
    return;
  }
  const groups = new Map();
  for (const row of rows) groups.set(group(row.updated), [...(groups.get(group(row.updated)) ?? []), row]);
  const parts = [...groups].map(([name, members]) =>
    el("section", {}, el("h2", {}, t(name)), el("ul", {}, members.map(item))));
  if (rows.length < total) parts.push(el("button", { type: "button", class: "quiet more", onclick: () => refresh(true) }, t("more")));
  list.replaceChildren(...parts);
  if (place) list.querySelector(`li[data-id="${place}"] a`)?.focus();
}

/** A conversation was saved: its row goes to the top without asking the server for all of them. */
function saved({ data }, isNew) {
  const row = rows.find(({ id }) => id === data.id);
  if (isNew || !row || query()) {
    refresh();
    return;
  }
  Object.assign(row, { title: data.title, version: data.version, updated: data.updated });
  rows = [row, ...rows.filter((other) => other !== row)];
  draw();
}

function item(row) {
  const title = row.title || t("untitled");
  const current = openOne()?.id === row.id;
  const text = row.kind === "completion";
  const link = el("a", { href: `#/${text ? "complete" : "c"}/${row.id}${row.hit ? `/${row.hit}` : ""}`, class: text ? "of-text" : "", title: `${title} · ${date(row.updated, { dateStyle: "medium" })}`, aria: current ? { current: "page" } : {} },
    el("span", { class: "title", dir: "auto" }, text ? icon("text") : null, text ? el("span", { class: "unseen", dir: "ltr" }, `${t("complete_text")}: `) : null, markWords(title)),
    row.snippet ? el("span", { class: "snippet", dir: "auto" }, markWords(row.snippet)) : null);
  const node = el("li", { data: { id: row.id } }, link);
  const button = iconButton("more", t("menu", { title }), () => menu(node, row, title), { aria: { label: t("menu", { title }), haspopup: "menu", expanded: "false" } });
  node.append(button);
  return node;
}

function menu(node, row, title) {
  const open = node.querySelector(".menu");
  closeMenus();
  if (open) return;
  const button = node.querySelector("button");
  const entry = (name, act, kind) => el("button", { type: "button", class: kind, role: "menuitem", tabIndex: -1, onclick: () => { closeMenus(); act(); } }, t(name));
  const box = el("div", { class: "menu", role: "menu", aria: { label: t("menu", { title }) } },
    entry("rename", () => rename(node, row)),
    entry("export_markdown", () => exportOne(row, true)),
    entry("export_json", () => exportOne(row, false)),
    entry("delete", () => remove(row, title), "danger"));
  box.addEventListener("keydown", (event) => {
    const entries = [...box.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      entries[(entries.indexOf(document.activeElement) + step + entries.length) % entries.length].focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.stopPropagation();
      closeMenus();
      button.focus();
    }
  });
  node.append(box);
  button.setAttribute("aria-expanded", "true");
  if (box.getBoundingClientRect().bottom > by("list").getBoundingClientRect().bottom) box.classList.add("above");
  box.firstElementChild.focus();
}

async function exportOne(row, asMarkdown) {
  const place = `${PATH}/${row.id}`;
  const title = row.title || t("untitled");
  try {
    if (asMarkdown) download(fileName(title, "md"), await markdownOf(await ask("GET", place)), "text/markdown");
    else download(fileName(title, "json"), await askText(`${place}/export`));
  } catch (error) {
    notice(error.message, "bad");
  }
}

function closeMenus() {
  for (const box of document.querySelectorAll("#list .menu")) {
    box.parentElement.querySelector("button")?.setAttribute("aria-expanded", "false");
    box.remove();
    queueMicrotask(draw);
  }
}

function rename(node, row) {
  const link = node.querySelector("a");
  const field = el("input", { value: row.title, dir: "auto", maxLength: 200, class: "rename", aria: { label: t("new_title") } });
  let over = false;
  const end = async (keep) => {
    if (over) return;
    over = true;
    field.replaceWith(link);
    link.focus();
    draw();
    const title = field.value.trim();
    if (!keep || !title || title === row.title) return;
    await retitle(row, title).catch((error) => notice(t("not_saved", { reason: error.message }), "bad"));
    refresh();
  };
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Enter") end(true);
    if (event.key === "Escape") { event.stopPropagation(); end(false); }
  });
  field.addEventListener("blur", () => end(true));
  link.replaceWith(field);
  field.select();
}

async function retitle(row, title) {
  const open = [state.conversation, state.text].find((one) => one?.id === row.id);
  if (open) {
    open.set("title", title);
    await open.save();
    emit("titled");
    return;
  }
  for (let version = row.version, tries = 0; ; tries += 1) {
    try {
      await ask("PATCH", `${PATH}/${row.id}`, { body: { version, title } });
      return;
    } catch (error) {
      if (error.status !== 409 || tries > 3) throw error;
      version = error.version;
    }
  }
}

async function remove(row, title) {
  if (!(await askSure(t("delete_title"), t("delete_text", { title }), t("delete")))) return;
  emit("deleting", row.id); // first: what is being saved at this moment must not bring it back
  try {
    await ask("DELETE", `${PATH}/${row.id}`);
  } catch (error) {
    if (error.status !== 404) {
      notice(t("not_deleted", { reason: error.message }), "bad");
      emit("spared", row.id);
      return;
    }
  }
  emit("deleted", row.id);
  refresh();
}

async function importFile(file) {
  try {
    const text = await file.text();
    let bundle;
    try { bundle = JSON.parse(text); } catch { throw new Error(t("not_json")); }
    const images = bundle?.format && typeof bundle.images === "object"; // each goes by itself, so that the rest is small
    const body = images ? JSON.stringify(await unpacked(bundle)) : text;
    const { imported } = await ask("POST", "api/ui/import", { body, raw: true });
    notice(t("imported", { n: imported.length }));
    by("search").value = "";
    await search();
    if (imported.length) location.hash = `#/c/${imported[0]}`;
  } catch (error) {
    notice(t("not_imported", { reason: error.message }), "bad");
  }
}

export function showSidebar(shown) {
  const root = document.documentElement;
  if (narrow()) {
    root.dataset.drawer = shown ? "open" : "";
    by("shade").hidden = !shown;
    by("main").inert = shown;
  } else {
    root.dataset.sidebar = shown ? "" : "hidden";
    kept("local", "sidebar", shown ? null : "hidden");
  }
  by("sidebar").inert = !shown;
  if (narrow()) (shown ? by("close-sidebar") : by("open-sidebar")).focus();
}

export const sidebarShown = () =>
  narrow() ? document.documentElement.dataset.drawer === "open" : document.documentElement.dataset.sidebar !== "hidden";

/** One of the two states fits the window's width, at the start and when it changes. */
function settle() {
  document.documentElement.dataset.drawer = "";
  by("shade").hidden = true;
  by("main").inert = false;
  by("sidebar").inert = !sidebarShown();
}

export function startSidebar() {
  by("search").addEventListener("input", () => { clearTimeout(searchTimer); searchTimer = setTimeout(search, SEARCHED_AFTER); });
  by("search").addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "ArrowDown") by("list").querySelector("a")?.focus();
    else if (event.key === "Enter") openFirst();
    else if (event.key !== "Escape" || !clearSearch()) return;
    event.preventDefault();
  });
  by("list").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !document.activeElement.matches("#list a")) return;
    event.preventDefault();
    const links = [...by("list").querySelectorAll("a")];
    const next = links[links.indexOf(document.activeElement) + step];
    if (next) next.focus();
    else if (step < 0) by("search").focus();
  });
  by("list").addEventListener("click", (event) => { if (event.target.closest("a") && narrow()) showSidebar(false); });
  document.addEventListener("click", (event) => { if (!event.target.closest("#list li")) closeMenus(); });
  by("open-sidebar").addEventListener("click", () => showSidebar(true));
  by("close-sidebar").addEventListener("click", () => showSidebar(false));
  by("shade").addEventListener("click", () => showSidebar(false));
  by("new-chat").addEventListener("click", () => { emit("new"); if (narrow()) showSidebar(false); });
  by("header-new").addEventListener("click", () => emit("new"));
  by("export").addEventListener("click", async () => {
    try { download("sporelm-conversations.json", await askText("api/ui/export")); } catch (error) { notice(error.message, "bad"); }
  });
  by("import").addEventListener("click", () => by("import-file").click());
  by("import-file").addEventListener("change", () => { const [file] = by("import-file").files; if (file) importFile(file); by("import-file").value = ""; });
  matchMedia("(max-width: 760px)").addEventListener("change", settle);
  on("saved", saved);
  on("opened", draw);
  on("page", draw);
  on("language", draw);
  settle();
}
