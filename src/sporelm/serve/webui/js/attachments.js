// Files that go with a message: texts, which are read in this page and put before its text as fenced blocks, and pictures,
// which go to the server at once; the message names them.
import { by, el, icon, iconButton, notice } from "./dom.js";
import { prepared, upload } from "./images.js";
import { language, number, t } from "./i18n.js";
import { canSee, emit, on, state } from "./state.js";

const MAX_BYTES = 400_000; // of all texts of a message; the server keeps 1,000,000 characters
const MAX_FILES = 20;
const MAX_PICTURES = 16;
const MAX_TEXT = 500_000; // characters beside them
const NAME = 120; // characters
const BLOCK = /^File: ([^\n]{1,200})\n(`{3,})[^`\n]*\n([\s\S]*?)\n\2(?:\n\n?|$)/;
const MEDIA = /^(?:video|audio)\//;
const PICTURE = /^image\//;

let pending = []; // {name, text, bytes}, or {name, image: {id, width, height}, url, ready}

/** Whether a text is more than a message can hold, which is told. */
export function isTooLong(text) {
  if (text.length <= MAX_TEXT) return false;
  notice(t("too_long", { n: number(text.length), most: number(MAX_TEXT) }), "bad");
  return true;
}

/** A message's content from files and text. */
export function joined(files, text) {
  const blocks = files.filter((file) => !file.image).map((file) => {
    const longest = Math.max(2, ...[...file.text.matchAll(/`+/g)].map(([run]) => run.length));
    const fence = "`".repeat(longest + 1);
    const kind = /\.([a-z0-9+#-]{1,12})$/i.exec(file.name)?.[1].toLowerCase() ?? "";
    return `File: ${file.name}\n${fence}${kind}\n${file.text}\n${fence}`;
  });
  return [...blocks, ...(text ? [text] : [])].join("\n\n");
}

/** The files and the text that a message's content was made of. */
export function parted(content) {
  const files = [];
  let rest = content;
  for (let match = BLOCK.exec(rest); match; match = BLOCK.exec(rest)) {
    files.push({ name: match[1], text: match[3] });
    rest = rest.slice(match[0].length);
  }
  return { files, text: rest };
}

export const size = (text) => t("characters", { n: number(text.length) });

/** A file as a message shows it: its name, and its text when that is asked for. */
export function fileView({ name, text }) {
  return el("details", { class: "file" },
    el("summary", {}, icon("file"), el("span", { class: "file-name", dir: "auto" }, name), el("small", {}, size(text))),
    el("pre", { tabIndex: 0, dir: "auto" }, text));
}

/** The pictures of files, as a message names them. */
export const imagesOf = (files) => files.filter(({ image }) => image).map(({ name, image }) => ({ ...image, name: [...name].slice(0, NAME).join("") }));

/** The text of a file. Throws where it has none. */
async function read(file) {
  if (MEDIA.test(file.type)) throw new Error(t("no_media", { name: file.name }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const marks = { "255,254": ["utf-16le"], "254,255": ["utf-16be"] };
  const codes = marks[bytes.slice(0, 2).join()] ?? (language === "zh" ? ["utf-8", "gb18030"] : ["utf-8"]);
  for (const code of codes) {
    try {
      const text = new TextDecoder(code, { fatal: true }).decode(bytes);
      if (!text.includes("\0")) return text.replace(/\r\n?/g, "\n").replace(/\n+$/, "");
    } catch { /* another one, or none */ }
  }
  throw new Error(t(bytes.some((byte) => byte < 9) ? "no_text" : "not_utf8", { name: file.name }));
}

/** Take a picture on its way: shown at once, and sent to the server. Throws where it cannot be taken. */
function addPicture(file) {
  if (!canSee()) throw new Error(t("no_pictures", { name: file.name, model: state.model }));
  if (pending.filter(({ image }) => image).length >= MAX_PICTURES) throw new Error(t("too_many_pictures", { n: MAX_PICTURES }));
  const one = { name: file.name || t("picture"), image: {}, url: null, bytes: 0, isReady: false };
  const drop = (error) => {
    without(one);
    if (error.status === 401) emit("key-needed");
    notice(error.status === undefined ? error.message : t("not_uploaded", { name: one.name, reason: error.message }), "bad");
  };
  one.ready = (async () => {
    const { blob, width, height } = await prepared(file);
    one.url = URL.createObjectURL(blob);
    draw();
    one.image = { id: await upload(blob), width, height };
    one.isReady = true;
    draw();
  })().catch(drop);
  pending.push(one);
}

/** Once all pictures are on the server. */
export const uploaded = () => Promise.all(pending.map(({ ready }) => ready));

async function add(files) {
  for (const file of files) {
    const used = pending.reduce((sum, each) => sum + each.bytes, 0);
    try {
      if (PICTURE.test(file.type)) {
        addPicture(file);
        continue;
      }
      if (pending.filter(({ image }) => !image).length >= MAX_FILES) throw new Error(t("too_many_files", { n: MAX_FILES }));
      if (used + file.size > MAX_BYTES && !MEDIA.test(file.type)) {
        throw new Error(t("too_large", { name: file.name, size: number(Math.ceil(file.size / 1000)), most: number(MAX_BYTES / 1000) }));
      }
      const name = [...file.name.replace(/\s+/g, " ").trim()].slice(0, NAME).join("") || "file.txt";
      pending.push({ name, text: await read(file), bytes: file.size });
    } catch (error) {
      notice(error.message, "bad");
    }
  }
  draw();
}

function without(file) {
  pending = pending.filter((other) => other !== file);
  if (file.url) URL.revokeObjectURL(file.url);
  draw();
}

function draw() {
  by("files").hidden = !pending.length;
  const remove = (file) => iconButton("close", t("remove_file", { name: file.name }), () => { without(file); by("composer-text").focus(); });
  by("files").replaceChildren(...pending.map((file) => (file.image
    ? el("li", { class: "thumb", aria: { busy: String(!file.isReady) } },
      el("img", { src: file.url ?? undefined, alt: file.name, title: file.name }), remove(file))
    : el("li", {}, icon("file"),
      el("span", { class: "file-name", dir: "auto" }, file.name), el("small", {}, size(file.text)), remove(file)))));
}

export const hasFiles = () => pending.length > 0;

/** Whether pictures wait that the picked model cannot see, which is told. */
export function unseen() {
  const blind = !canSee() && pending.some(({ image }) => image);
  if (blind) notice(t("cannot_see", { model: state.model }), "bad");
  return blind;
}

/** The buttons follow what the picked model reads. */
function showButtons() {
  const sees = canSee();
  const blind = state.model && !sees;
  by("composer").classList.toggle("sees", sees);
  by("attach-image").hidden = !sees;
  by("camera").hidden = !sees || !matchMedia("(pointer: coarse)").matches;
  by("attach").title = t(sees ? "attach_both" : blind ? "attach_blind" : "attach", { model: state.model });
  by("attach").ariaLabel = by("attach").title;
  by("drop").textContent = t(sees ? "drop_both" : "drop");
}

/** The files that wait to be sent; they are the message's now. */
export function takeFiles(onlyLook = false) {
  const files = pending;
  if (onlyLook) return files;
  for (const { url } of files) if (url) URL.revokeObjectURL(url); // the message has its own
  pending = [];
  draw();
  return files;
}

export function startAttachments() {
  for (const [button, name] of [["attach", "attach-file"], ["attach-image", "image-file"], ["camera", "camera-file"]]) {
    const field = by(name);
    by(button).addEventListener("click", () => field.click());
    field.addEventListener("change", async () => { await add([...field.files]); field.value = ""; by("composer-text").focus(); });
  }
  for (const name of ["models", "picked", "language"]) on(name, showButtons);
  by("composer-text").addEventListener("paste", (event) => {
    const { files, types } = event.clipboardData;
    if (!files.length || types.includes("text/plain")) return; // tables come as text and as a picture of it
    event.preventDefault();
    add([...files]);
  });
  const page = by("chat-page");
  const carries = (event) => event.dataTransfer?.types.includes("Files");
  let over = 0;
  const shown = (yes) => { over = yes ? over : 0; page.classList.toggle("dropping", yes); };
  addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); }); // or the browser would open it
  addEventListener("drop", (event) => { if (carries(event)) event.preventDefault(); shown(false); });
  page.addEventListener("dragenter", (event) => { if (carries(event)) { over += 1; shown(true); } });
  page.addEventListener("dragleave", () => { over -= 1; if (over <= 0) shown(false); });
  page.addEventListener("drop", (event) => { if (carries(event)) add([...event.dataTransfer.files]); });
}
