// Bars that stay until what they tell of is over: a server that is out of reach, and a key that is missing.
import { ask } from "./api.js";
import { by, el } from "./dom.js";
import { t } from "./i18n.js";
import { emit, on, openOne } from "./state.js";

const FIRST = 1000; // ms until a server that is out of reach is looked for again
const LONGEST = 8000;
let away = false; // whether no server answered the last time
let timer = 0;
let wait = FIRST;
let keyMissing = false;
let declined = false; // whether the dialog for the key was closed without one

/** Whether the server is out of reach, as far as is known. */
export const isAway = () => away;

function draw() {
  const bars = [];
  if (away) bars.push(el("div", { class: "bar" }, el("span", { class: "dot" }), el("span", {}, t("unreachable"))));
  if (keyMissing) {
    bars.push(el("div", { class: "bar" }, el("span", {}, t("key_missing")),
      el("button", { type: "button", onclick: () => emit("ask-key") }, t("key_give"))));
  }
  const open = openOne();
  if (open?.isDeleted) {
    bars.push(el("div", { class: "bar" }, el("span", {}, t("deleted_elsewhere")),
      el("button", { type: "button", onclick: () => open.keep() }, t("keep_copy"))));
  }
  by("bars").replaceChildren(...bars);
}

function lost() {
  if (!away) { away = true; wait = FIRST; draw(); }
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

function look() {
  wait = Math.min(LONGEST, wait * 1.5);
  ask("GET", "health").catch(() => {}); // whatever the answer is, it tells "reached", or "lost"
}

function reached() {
  if (!away) return;
  clearTimeout(timer);
  away = false;
  draw();
  emit("online");
}

export function startConnection() {
  on("lost", lost);
  on("reached", reached);
  on("key-needed", () => {
    if (!keyMissing) { keyMissing = true; draw(); }
    if (!declined) emit("ask-key");
  });
  on("key-declined", () => { declined = true; });
  on("key", () => { keyMissing = declined = false; draw(); });
  for (const name of ["language", "erased", "opened", "page"]) on(name, draw);
  addEventListener("online", () => { if (away) look(); });
}
