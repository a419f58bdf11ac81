// The page: which conversation is open, what the composer does, which model answers.
import { answer } from "./answer.js";
import { apiKey, ask } from "./api.js";
import { hasFiles, isTooLong, joined, startAttachments, takeFiles } from "./attachments.js";
import { openText, refreshText, startComplete, startText, stopCompletion, unsavedText } from "./complete.js";
import { Conversation } from "./conversation.js";
import { askKey, startDialogs } from "./dialogs.js";
import { by, el, icon, kept, notice } from "./dom.js";
import { t, translatePage } from "./i18n.js";
import { grow } from "./message.js";
import { startMessages } from "./messages.js";
import { selectMatch, showHit, startSearchMarks } from "./search.js";
import { startShortcuts, stopAnswer } from "./shortcuts.js";
import { narrow, refresh, showSidebar, sidebarShown, startSidebar } from "./sidebar.js";
import { emit, on, openOne, pickedModel, state } from "./state.js";
import { hasForked, staysOn } from "./tree.js";

const TITLE = 60; // characters of the first message
const RETRY = 4000; // ms until a server that is gone is looked for again
const touches = matchMedia("(hover: none) and (pointer: coarse)").matches;
const held = new Map(); // conversations whose answers go on while another one is open

function fresh() {
  let settings = {};
  try { settings = JSON.parse(kept("local", "sampling") ?? "{}"); } catch { /* not ours */ }
  return Conversation.fresh({ settings, system: kept("local", "system") ?? "" });
}

function open(conversation) {
  state.conversation = conversation;
  const { model } = conversation.data;
  if (model && state.models.some((known) => known.id === model)) pick(model, false);
  emit("opened", conversation);
  titled();
  composing();
}

function titled() {
  const title = (openOne() ?? state.conversation).data.title;
  by("to-chat").href = state.conversation.id ? `#/c/${state.conversation.id}` : "#/";
  document.title = title ? `${title} · Sporelm` : "Sporelm";
  by("page-title").textContent = title || "Sporelm";
}

async function route() {
  const [, page, id, hit] = location.hash.split("/"); // `hit`: the message that a search found
  const complete = page === "complete";
  state.page = complete ? "complete" : "chat";
  by("chat-page").hidden = complete;
  by("complete-page").hidden = !complete;
  (complete ? by("complete-text") : by("composer")).before(by("notices")); // where they cover nothing
  by("to-chat").ariaCurrent = complete ? null : "page";
  by("to-complete").ariaCurrent = complete ? "page" : null;
  const known = /^[0-9a-f]{32}$/.test(id ?? "");
  if (known && hit !== undefined) history.replaceState(null, "", `#/${page}/${id}`); // a reload opens it as it was left
  if (!complete) led = "";
  if (complete) {
    await openText(known ? id : null);
    if (hit !== undefined && state.text?.id === id) selectMatch(by("complete-text"));
  } else if (page === "c" && known) {
    if (state.conversation.id !== id) await load(id);
  } else if (state.conversation.id) {
    open(fresh());
  }
  emit("page");
  titled();
  if (!complete && hit !== undefined && state.conversation.id === id) showHit(state.conversation, hit);
  else if (!complete && !narrow()) by("composer-text").focus();
}

async function load(id) {
  const here = held.get(id);
  if (here?.answering || here?.unsaved) {
    open(here);
    return;
  }
  try {
    const conversation = await Conversation.load(id);
    if (!location.hash.endsWith(id)) return; // another one was opened meanwhile
    if (conversation.data.kind === "completion") {
      location.replace(`#/complete/${id}`);
      return;
    }
    held.set(id, conversation);
    open(conversation);
  } catch (error) {
    if (error.status === 401) { emit("key-needed"); return; }
    notice(error.status === 404 ? t("gone") : error.message, "bad");
    location.hash = "#/";
  }
}

function startFresh() {
  if (state.page === "complete") {
    startText();
    return;
  }
  freshChat();
}

function freshChat() {
  open(fresh()); // at once: what is set or typed next is the new one's
  if (location.hash !== "") location.hash = "#/";
  by("composer-text").focus();
}

function send() {
  const area = by("composer-text");
  const text = area.value.trim();
  const conversation = state.conversation;
  if ((!text && !hasFiles()) || conversation.answering || !state.model || isTooLong(text)) return;
  const files = takeFiles();
  area.value = "";
  kept("session", "draft", null);
  grow(area);
  if (!conversation.data.title) conversation.set("title", [...(text || files[0].name).replace(/\s+/g, " ")].slice(0, TITLE).join(""));
  conversation.set("model", state.model);
  const { id } = conversation.add({ parent: conversation.data.current, role: "user", content: joined(files, text) });
  emit("asked");
  answer(conversation, id);
  conversation.save();
  titled();
}

/** The buttons of the composer follow what goes on. */
function composing() {
  const busy = Boolean(state.conversation.answering);
  const hadFocus = document.activeElement === by("stop") || document.activeElement === by("send");
  by("send").hidden = busy;
  by("stop").hidden = !busy;
  by("send").disabled = !state.model;
  if (hadFocus && !touches) by("composer-text").focus(); // which on a phone would bring up its keyboard
}

let again = 0;
let led = ""; // from where the page itself went to the one that completes

async function loadModels() {
  clearTimeout(again);
  try {
    const { data } = await ask("GET", "v1/models");
    state.models = data.map((model) => ({
      id: model.id,
      context: model.max_context ?? model.max_model_len ?? null,
      chat: model.chat ?? true,
      loaded: model.loaded ?? true,
    }));
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else if (!state.models.length) {
      if (!again) notice(error.message, "bad");
      again = setTimeout(async () => { await loadModels(); if (state.models.length) refresh(); }, RETRY);
    }
    return;
  }
  again = 0;
  const wanted = state.model || state.conversation?.data.model || kept("local", "model");
  listModels();
  pick(state.models.find(({ id }) => id === wanted)?.id ?? state.models[0]?.id ?? "", false);
  emit("models");
}

/** The picker: those that are loaded first, if not all are. */
function listModels() {
  const option = ({ id, chat }) => el("option", { value: id }, chat ? id : t("without_template", { model: id }));
  const [here, others] = [true, false].map((loaded) => state.models.filter((model) => model.loaded === loaded));
  if (!state.models.length) by("model").replaceChildren(el("option", { value: "" }, t("no_model")));
  else if (!here.length || !others.length) by("model").replaceChildren(...state.models.map(option));
  else {
    by("model").replaceChildren(el("optgroup", { label: t("loaded") }, here.map(option)),
      el("optgroup", { label: t("not_loaded") }, others.map(option)));
  }
}

function pick(id, byHand) {
  state.model = id;
  by("model").value = id;
  by("composer-text").placeholder = id ? t("say", { model: id.split("/").at(-1) }) : `${t("message_field")}…`;
  by("empty-model").textContent = id ? t("talking_to", { model: id }) : "";
  composing();
  if (byHand) {
    kept("local", "model", id);
    emit("models");
  }
  if (!id) return;
  if (pickedModel()?.chat !== false) {
    if (led && byHand && state.page === "complete" && !by("complete-text").value) location.hash = led;
  } else if (["", "#/"].includes(location.hash) && !state.conversation.data.messages.length) {
    leadToComplete();
  }
}

/** The model that is picked only completes texts; one that is picked there for chats leads back, if nothing was written. */
function leadToComplete() {
  notice(t("no_template", { model: state.model }));
  led = state.conversation.id ? `#/c/${state.conversation.id}` : "#/";
  location.hash = "#/complete";
}

/** A request was refused: perhaps since its model, which is loaded now, has no chat template. */
async function refused(conversation) {
  await Promise.all([loadModels(), conversation.save()]); // which writes the address
  if (conversation !== state.conversation || state.page !== "chat" || pickedModel()?.chat !== false) return;
  emit("changed", conversation);
  leadToComplete();
}

function ideas() {
  const area = by("composer-text");
  by("ideas").replaceChildren(...["idea_1", "idea_2", "idea_3"].map((name) =>
    el("button", { type: "button", onclick: () => { area.value = t(name); grow(area); area.focus(); } }, t(name))));
}

/** Settings of a conversation: they are kept with it, and are those of the next new one. */
function set(conversation) {
  kept("local", "sampling", JSON.stringify(conversation.data.settings));
  if (conversation.data.kind === "chat") kept("local", "system", conversation.data.system);
  conversation.save();
}

function startComposer() {
  const area = by("composer-text");
  area.value = kept("session", "draft") ?? "";
  grow(area);
  area.addEventListener("input", () => { grow(area); kept("session", "draft", area.value || null); });
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    if (touches && !event.ctrlKey && !event.metaKey) return; // there Enter is the only way to a new line
    event.preventDefault();
    send();
  });
  by("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  by("model").addEventListener("change", () => pick(by("model").value, true));
}

/** Another key, or none: of what the old one showed only what is not kept yet stays, and not where it was put away. */
async function rekeyed() {
  const stays = apiKey() && state.conversation.unsaved;
  const text = apiKey() ? unsavedText() : null;
  held.clear();
  state.text = text;
  text?.save();
  if (!stays) open(fresh());
  if (!apiKey()) history.replaceState(null, "", "#/");
  await loadModels();
  await refresh();
  if (!stays) {
    await route();
    return;
  }
  await state.conversation.save(); // which may have been under way with the old key
  if (state.conversation.unsaved) state.conversation.save();
}

function startEvents() {
  const known = new Set(); // models that were asked about again after their first answer, which loaded them
  on("changed", (conversation) => {
    if (conversation !== state.conversation) return;
    composing();
    if (conversation.answering || pickedModel()?.loaded !== false || known.has(state.model)) return;
    known.add(state.model);
    loadModels();
  });
  on("saved", (conversation, isNew) => {
    held.set(conversation.id, conversation);
    if (isNew && conversation === state.conversation && state.page === "chat") history.replaceState(null, "", `#/c/${conversation.id}`);
    titled();
  });
  const those = (id) => new Set([held.get(id), state.text, state.conversation].filter((one) => one?.id === id));
  on("deleting", (id) => those(id).forEach((one) => one.drop()));
  on("spared", (id) => those(id).forEach((one) => one.revive()));
  on("deleted", (id) => {
    held.delete(id);
    if (state.text?.id === id) {
      startText();
    } else if (state.conversation.id === id) {
      if (state.page === "chat") freshChat();
      else open(fresh());
    }
  });
  on("new", freshChat);
  on("refused", refused);
  on("set", set);
  on("titled", titled);
  on("key-needed", () => { if (!apiKey()) askKey(); }); // not if one was given meanwhile
  on("key", rekeyed);
  on("language", () => { ideas(); listModels(); pick(state.model, false); });
  addEventListener("hashchange", route);
  addEventListener("pagehide", () => { held.forEach((conversation) => conversation.flush()); state.text?.flush(); });
  document.addEventListener("visibilitychange", async () => {
    if (document.visibilityState === "hidden") held.forEach((conversation) => conversation.keepAnswer()); // it may never be seen again
    if (document.visibilityState !== "visible" || by("ask").open) return;
    await loadModels();
    await refresh();
    await refreshText();
    const { conversation } = state;
    const rests = () => // asked twice, for while the newest comes something may be said
      conversation === state.conversation && conversation.id && !conversation.answering && !conversation.unsaved
      && !document.querySelector(".editing, dialog[open]");
    if (!rests()) return;
    const newest = await ask("GET", `api/ui/conversations/${conversation.id}`).catch(() => null);
    if (!newest || !rests() || newest.version <= conversation.data.version) return;
    newest.current = staysOn(newest, conversation.data.current);
    if (hasForked(conversation.data, newest)) notice(t("went_on"));
    open(new Conversation(newest));
  });
}

async function start() {
  for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
  translatePage();
  state.conversation = fresh();
  startSidebar();
  startMessages();
  startSearchMarks();
  startDialogs();
  startComplete();
  startComposer();
  startAttachments();
  startEvents();
  startShortcuts({
    fresh: startFresh,
    search: () => { if (!sidebarShown()) showSidebar(true); by("search").focus(); by("search").select(); },
    toggleSidebar: () => showSidebar(!sidebarShown()),
    escape: () => {
      if (narrow() && sidebarShown()) { showSidebar(false); return true; }
      return state.page === "complete" ? stopCompletion() : stopAnswer();
    },
  });
  ideas();
  open(state.conversation);
  await loadModels();
  await Promise.all([refresh(), route()]);
}

start();
