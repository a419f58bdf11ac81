// The page: which conversation is open, what the composer does, which model answers.
import { answer } from "./answer.js";
import { apiKey, ask } from "./api.js";
import { hasFiles, imagesOf, isTooLong, joined, startAttachments, takeFiles, unseen, uploaded } from "./attachments.js";
import { openText, refreshText, startComplete, startText, stopCompletion, unsavedText } from "./complete.js";
import { Conversation } from "./conversation.js";
import { startConnection } from "./connection.js";
import { askKey, startDialogs } from "./dialogs.js";
import { by, el, icon, kept, notice } from "./dom.js";
import { offerRoom, overflowOf, startFit } from "./fit.js";
import { t, translatePage } from "./i18n.js";
import { forget, imageIds } from "./images.js";
import { startLive } from "./live.js";
import { grow } from "./message.js";
import { startMessages } from "./messages.js";
import { startPictures } from "./pictures.js";
import { selectMatch, showHit, startSearchMarks } from "./search.js";
import { startShortcuts, stopAnswer } from "./shortcuts.js";
import { clearSearch, narrow, refresh, showSidebar, sidebarShown, startSidebar } from "./sidebar.js";
import { emit, on, openOne, pickedModel, state, until } from "./state.js";

const TITLE = 60; // characters of the first message
const touches = matchMedia("(hover: none) and (pointer: coarse)").matches;
const held = new Map(); // conversations that were saved here: the server may not have all of them while another one is open

const fresh = () => Conversation.fresh({});

function open(conversation) {
  state.conversation = conversation;
  forget([...imageIds(conversation.data), ...imagesOf(takeFiles(true)).map(({ id }) => id)]);
  const { model } = conversation.data;
  if (model && state.models.some((known) => known.id === model)) pick(model, false);
  emit("opened", conversation);
  titled();
  composing();
  showSettings();
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
  if (here?.answering?.controller || here?.unsaved) {
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
    open(conversation);
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    if (error.status === 0 || error.status === 401) { // asked for again when that is over
      until(["online", "key"]).then(() => { if (location.hash.endsWith(id) && state.conversation.id !== id) load(id); });
      return;
    }
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

let checking = false; // whether there is room for a message

/** Send what was written, if it has room; else the reader is asked what to do. */
async function send() {
  const area = by("composer-text");
  const text = area.value.trim();
  const conversation = state.conversation;
  if ((!text && !hasFiles()) || checking || conversation.answering || !state.model || isTooLong(text) || unseen() || conversation.refuses()) return;
  checking = true;
  try {
    await uploaded();
    if (!text && !hasFiles()) return; // a picture was not taken
    const files = takeFiles(true);
    const overflow = await overflowOf(conversation, joined(files, text), imagesOf(files));
    if (conversation !== state.conversation || area.value.trim() !== text) return; // changed meanwhile
    if (overflow) offerRoom(overflow, (start) => sendNow(conversation, text, start));
    else sendNow(conversation, text);
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else sendNow(conversation, text); // the server says itself what it does not take
  } finally {
    checking = false;
  }
}

/** Send what was written; `start` is the first message that the model is shown, null the new one, undefined as before. */
function sendNow(conversation, text, start) {
  if (conversation.answering || conversation.refuses()) return;
  const area = by("composer-text");
  const files = takeFiles();
  area.value = "";
  kept("session", "draft", null);
  grow(area);
  if (!conversation.data.title) conversation.set("title", [...(text || files[0].name).replace(/\s+/g, " ")].slice(0, TITLE).join(""));
  conversation.set("model", state.model);
  const images = imagesOf(files);
  const fields = { parent: conversation.data.current, role: "user", content: joined(files, text), ...(images.length ? { images } : {}) };
  const message = conversation.add(fields);
  if (start !== undefined) message.context_start = start ?? message.id;
  emit("asked");
  answer(conversation, message.id);
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

let led = ""; // from where the page itself went to the one that completes

async function loadModels() {
  try {
    const { data } = await ask("GET", "v1/models");
    state.models = data.map((model) => ({
      id: model.id,
      context: model.max_context ?? model.max_model_len ?? null,
      chat: model.chat ?? true,
      vision: model.vision ?? null,
      loaded: model.loaded ?? true,
    }));
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else if (error.status) notice(error.message, "bad");
    return;
  }
  const wanted = state.model || state.conversation?.data.model || kept("local", "model");
  listModels();
  pick(state.models.find(({ id }) => id === wanted)?.id ?? state.models[0]?.id ?? "", false);
  emit("models");
}

/** Fill the picker: loaded models first, unless all are loaded. */
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
  emit("picked");
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

/** What is set for the open chat, beside the message field; where nothing is, the defaults hold and nothing is said. */
function showSettings() {
  const { system, settings } = state.conversation.data;
  const values = Object.entries(settings).filter(([, value]) => value !== null && value !== "");
  const parts = [system && t("system"), ...values.map(([name, value]) => `${t(name === "stop" ? "stop_text" : name)} ${value}`)].filter(Boolean);
  by("given").hidden = !parts.length;
  by("given").textContent = parts.join(" · ");
}

function ideas() {
  const area = by("composer-text");
  by("ideas").replaceChildren(...["idea_1", "idea_2", "idea_3"].map((name) =>
    el("button", { type: "button", onclick: () => { area.value = t(name); grow(area); area.focus(); } }, t(name))));
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
  by("given").addEventListener("click", () => by("open-settings").click());
  by("model").addEventListener("change", () => pick(by("model").value, true));
}

/** Apply another key, or none. Only unsaved changes made with the old key stay, and not where they were stored. */
async function rekeyed() {
  const stays = apiKey() && state.conversation.unsaved;
  const text = apiKey() ? unsavedText() : null;
  held.clear();
  if (!stays) forget();
  if (!stays) state.conversation.answering?.controller?.abort(); // it is not asked for with another's key
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
  if (state.conversation.isDeleted) state.conversation.keep(); // the new key does not have it
  else if (state.conversation.unsaved) state.conversation.save();
}

function startEvents() {
  const known = new Set(); // models that were asked about again after their first answer, which loaded them
  on("changed", (conversation) => {
    if (conversation !== state.conversation) return;
    composing();
    showSettings();
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
  on("erased", ({ id }) => { held.delete(id); refresh(); });
  on("new", freshChat);
  on("refused", refused);
  on("set", (conversation) => { conversation.save(); showSettings(); }); // of this chat alone: a new one begins with the defaults
  on("titled", titled);
  on("ask-key", () => { if (!apiKey()) askKey(); }); // not if one was given meanwhile
  on("online", async () => { await loadModels(); await refresh(); });
  on("key", rekeyed);
  on("language", () => { ideas(); showSettings(); listModels(); pick(state.model, false); });
  addEventListener("hashchange", route);
  addEventListener("pagehide", () => { held.forEach((conversation) => conversation.flush()); state.text?.flush(); });
  document.addEventListener("visibilitychange", async () => {
    if (document.visibilityState !== "visible" || by("ask").open) return;
    await loadModels();
    await refresh();
    await refreshText();
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
  startPictures();
  startEvents();
  startConnection();
  startLive();
  startFit();
  startShortcuts({
    fresh: startFresh,
    search: () => { if (!sidebarShown()) showSidebar(true); by("search").focus(); by("search").select(); },
    toggleSidebar: () => showSidebar(!sidebarShown()),
    escape: () => {
      if (narrow() && sidebarShown()) { showSidebar(false); return true; }
      return (state.page === "complete" ? stopCompletion() : stopAnswer()) || clearSearch();
    },
  });
  ideas();
  open(state.conversation);
  await loadModels();
  await Promise.all([refresh(), route()]);
}

start();
