// Requests to the server: the key, errors as objects, and streams of server-sent events. Tells "lost" when no server
// answers, and "reached" when one does.
import { kept } from "./dom.js";
import { number, t } from "./i18n.js";
import { emit } from "./state.js";

const SILENCE = 45_000; // ms without a word from a stream of events, whose server says something every 15 s
const OUTLIVING = 60_000; // bytes on their way at a time that outlive the page: browsers refuse more than 64 KiB
let outliving = 0;
/** Whether a text can be a key: visible ASCII. */
export const isKey = (text) => /^[!-~]+$/.test(text.trim());
let key = kept("session", "key") ?? kept("local", "key") ?? "";
let refused = Boolean(key) && !isKey(key); // whether the last key was one that the server does not know
if (refused) key = "";
export const apiKey = () => key;
export const keyRefused = () => refused;

/** Take another key, for this tab or, if it is to be remembered, for this browser; none for an empty one. */
export function setApiKey(value, remember = false) {
  key = value.trim();
  refused = false;
  kept("session", "key", key || null);
  kept("local", "key", remember && key ? key : null);
}

export class ApiError extends Error {
  constructor(status, message, code, extra = {}) {
    super(message);
    Object.assign(this, { status, code, ...extra });
  }
}

function headers(json) {
  const result = json ? { "content-type": "application/json" } : {};
  if (key) result.authorization = `Bearer ${key}`;
  return result;
}

/** A text that is too long for the context, in the page's words; the server's numbers are in its message. */
function overflow(message) {
  const numbers = /has (\d+) (?:tokens, the context holds|characters\b.*\bcontext of) (\d+)/.exec(message);
  const unit = message.includes(" characters") ? "characters" : "tokens";
  const size = numbers ? ` (${t(unit, { n: number(Number(numbers[1])) })} > ${t("tokens", { n: number(Number(numbers[2])) })})` : "";
  return t("overflow_text", { size });
}

async function failure(response) {
  const body = await response.json().catch(() => null);
  const told = body?.error ?? body ?? {};
  const wait = Number(response.headers.get("retry-after")) || 1;
  let message = told.message || `HTTP ${response.status}`;
  if (response.status === 429) message = t("busy", { n: wait });
  else if (told.code === "context_length_exceeded") message = overflow(String(message));
  return new ApiError(response.status, String(message), told.code ?? "", { version: told.version, wait });
}

/** A response, or an ApiError; status 0 where there is no server. A key that is refused is forgotten. */
async function send(method, path, options = {}) {
  const { body, signal, keepalive, raw, more } = options;
  const used = key;
  const text = body === undefined || raw ? body : JSON.stringify(body);
  const size = keepalive ? new Blob([text]).size : 0;
  const outlives = size > 0 && outliving + size < OUTLIVING;
  let response;
  try {
    outliving += outlives ? size : 0;
    response = await fetch(new URL(path, document.baseURI), {
      method, signal, keepalive: outlives, headers: { ...headers(body !== undefined), ...more }, cache: "no-store",
      body: text,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    emit("lost");
    throw new ApiError(0, t("offline"), "offline");
  } finally {
    outliving -= outlives ? size : 0;
  }
  emit("reached");
  if (response.ok) return response;
  if (response.status === 401 && used && used === key) {
    setApiKey("");
    refused = true;
  } else if (response.status === 401 && key && used !== key) {
    return send(method, path, options); // another key was given meanwhile
  }
  throw await failure(response);
}

export async function ask(method, path, options) {
  const response = await send(method, path, options);
  return response.json();
}

export const askBlob = async (path, options) => (await send("GET", path, options)).blob();

export const askText = async (path, options) => (await send("GET", path, options)).text();

/** The lines of a response as they come; ends with an ApiError where the connection breaks off. */
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw error.name === "AbortError" ? error : new ApiError(0, t("broken_off"), "broken_off");
      });
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The data of each server-sent event as an object, to the end of the stream. Ends with AbortError when `signal` says so. */
export async function* events(path, body, signal) {
  for await (const line of lines(await send("POST", path, { body, signal }))) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data && data !== "[DONE]") yield JSON.parse(data);
  }
}

/** Named server-sent events {name, id, data} of what goes on at the server; `last` is the id of the last one that is known. */
export async function* follow(path, { signal, last }) {
  const silent = new AbortController();
  let timer = 0;
  const heard = () => { clearTimeout(timer); timer = setTimeout(() => silent.abort(), SILENCE); };
  try {
    const response = await send("GET", path, { signal: AbortSignal.any([signal, silent.signal]), more: last ? { "last-event-id": last } : {} });
    let event = {};
    heard();
    for await (const line of lines(response)) {
      heard();
      if (line.startsWith("event: ")) event.name = line.slice(7);
      else if (line.startsWith("id: ")) event.id = line.slice(4);
      else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
      else if (!line && event.name) { yield event; event = {}; }
    }
  } catch (error) {
    throw silent.signal.aborted ? new ApiError(0, t("broken_off"), "broken_off") : error;
  } finally {
    clearTimeout(timer);
  }
}
