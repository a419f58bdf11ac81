// Elements, icons and the few things every view asks of the page.

export const by = (id) => document.getElementById(id);

/** An element: `on...` properties are listeners, `data` and `aria` are tables, null children are left out. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "aria") for (const [key, part] of Object.entries(value)) node.setAttribute(`aria-${key}`, part);
    else if (name === "class") node.className = value;
    else if (name in node && name !== "role" && name !== "for") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Lines of 24 x 24 pictures.
const PATHS = {
  plus: "M12 5v14M5 12h14",
  compose: "M12 5H6a1 1 0 0 0-1 1v12a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1v-6M10 14v-2.5l7.8-7.8 2.5 2.5-7.8 7.8Z",
  chat: "M4.5 18.5V6.5a1 1 0 0 1 1-1h13a1 1 0 0 1 1 1v8.5a1 1 0 0 1-1 1H8ZM8.5 9.5h7M8.5 12.5h4.5",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  up: "M12 15V4M8 8l4-4 4 4M5 16v3h14v-3",
  down: "M12 4v11M8 11l4 4 4-4M5 16v3h14v-3",
  panel: "M4 5h16v14H4ZM9.5 5v14",
  keyboard: "M3 7h18v10H3ZM6.5 10.2h.01M10 10.2h.01M14 10.2h.01M17.5 10.2h.01M8 13.8h8",
  sliders: "M4 8h9M17 8h3M15 6v4M4 16h3M11 16h9M9 14v4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8Z",
  "arrow-down": "M12 5v14M6 13l6 6 6-6",
  copy: "M9 9h11v11H9ZM15 9V4H4v11h5",
  check: "M5 12.5l4.5 4.5L19 7",
  edit: "M4 20l1-4L16 5l3 3L8 19ZM14 7l3 3",
  again: "M19 12a7 7 0 1 1-2-5M17.5 3v4.5H13",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  more: "M6 11.8v.4M12 11.8v.4M18 11.8v.4",
  close: "M6 6l12 12M18 6L6 18",
  clip: "M19.5 11.5l-7.6 7.6a4.6 4.6 0 0 1-6.5-6.5l8-8a3.1 3.1 0 0 1 4.4 4.4l-8 8a1.5 1.5 0 0 1-2.2-2.2l7.2-7.1",
  image: "M4 5h16v14H4ZM4 16.5l4.5-4.5 4 4 2.5-2.5 5 5M15.2 9.3h.02",
  camera: "M4 8h3.5L9 5.5h6L16.5 8H20v11H4ZM12 16.5a3.3 3.3 0 1 0 0-6.6 3.3 3.3 0 0 0 0 6.6Z",
  file: "M6 3h8l4 4v14H6ZM14 3v4h4M9 12h6M9 16h6",
  bin: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5.5M13.5 11v5.5",
  text: "M5 6h14M5 10h14M5 14h14M5 18h8",
};

/** A picture, unseen by screen readers: its button carries the label. */
export function icon(name) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const path = document.createElementNS(ns, "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

export function iconButton(name, label, onclick, properties = {}) {
  return el("button", { type: "button", class: "icon", title: label, aria: { label }, onclick, ...properties }, icon(name));
}

/** A random id of 32 hexadecimal digits; unlike crypto.randomUUID also where the page came over plain HTTP. */
export function randomId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What this browser keeps, `where` "local" or "session"; a browser that keeps nothing loses it at the next load. */
export function kept(where, name, value) {
  try {
    const storage = where === "local" ? localStorage : sessionStorage; // which may throw where cookies are refused
    if (value === undefined) return storage.getItem(`sporelm.${name}`);
    if (value === null) storage.removeItem(`sporelm.${name}`);
    else storage.setItem(`sporelm.${name}`, value);
  } catch { /* private windows */ }
  return value ?? null;
}

/** A line that comes up and goes by itself; one that is there already is not said again. */
export function notice(text, kind = "") {
  if ([...by("notices").children].some((node) => node.textContent === text)) return;
  const node = el("div", { class: `notice ${kind}` }, text);
  by("notices").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 8000 : 3500);
}

/** Say something to a screen reader. */
export function announce(text) {
  const live = by("live");
  live.textContent = "";
  requestAnimationFrame(() => { live.textContent = text; });
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no clipboard over plain HTTP
    const area = el("textarea", { value: text, class: "unseen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Offer a text as a file. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
