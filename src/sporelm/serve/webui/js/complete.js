// The page that goes on with a text: for models without a chat template, and for whoever wants none.
import { Measure, sampling } from "./answer.js";
import { events } from "./api.js";
import { announce, by, kept, notice } from "./dom.js";
import { number, t } from "./i18n.js";
import { emit, state } from "./state.js";

let controller = null;
const undone = []; // texts before each answer, the latest last

function showStats(stats) {
  by("complete-stats").textContent = [
    stats.tokens_per_s && t("speed", { n: number(stats.tokens_per_s, 1) }),
    stats.first_token_s !== undefined && t("first_token", { n: number(stats.first_token_s, 2) }),
    t("tokens", { n: number(stats.completion_tokens) }),
    stats.prompt_tokens && t("cached", { n: number(stats.cached_tokens), total: number(stats.prompt_tokens) }),
  ].filter(Boolean).join(" · ");
}

function running(yes) {
  by("complete-run").hidden = yes;
  by("complete-stop").hidden = !yes;
  by("complete-text").readOnly = yes;
  by("complete-undo").disabled = yes || !undone.length;
}

async function run() {
  const area = by("complete-text");
  if (controller || !area.value) return;
  controller = new AbortController();
  undone.push(area.value);
  running(true);
  announce(t("answering"));
  const measure = new Measure();
  const settings = sampling(state.conversation.data.settings);
  const body = { model: state.model, prompt: area.value, max_tokens: 256, ...settings, stream: true, stream_options: { include_usage: true } };
  let waiting = "";
  const timer = setInterval(() => { waiting = put(area, waiting); showStats(measure.stats()); }, 60);
  let said = "";
  try {
    for await (const chunk of events("v1/completions", body, controller.signal)) {
      if (chunk.error) throw new Error(chunk.error.message);
      measure.usage(chunk.usage);
      const text = chunk.choices?.[0]?.text;
      if (text) { measure.piece(); waiting += text; said += text; }
    }
  } catch (error) {
    if (error.status === 401) emit("key-needed");
    else if (error.name !== "AbortError") notice(t("failed", { reason: error.message }), "bad");
  } finally {
    clearInterval(timer);
    put(area, waiting);
    showStats(measure.stats());
    controller = null;
    if (!said) undone.pop();
    running(false);
    kept(sessionStorage, "text", area.value);
    announce(t("answered", { text: said.slice(0, 2000) }));
    area.focus();
  }
}

/** Put text to the end, and follow it if the end was in sight. */
function put(area, text) {
  if (!text) return "";
  const atEnd = area.scrollHeight - area.scrollTop - area.clientHeight < 40;
  area.value += text;
  if (atEnd) area.scrollTop = area.scrollHeight;
  return "";
}

export function stopCompletion() {
  if (!controller) return false;
  controller.abort();
  return true;
}

export function startComplete() {
  const area = by("complete-text");
  area.value = kept(sessionStorage, "text") ?? "";
  area.addEventListener("change", () => kept(sessionStorage, "text", area.value));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) { event.preventDefault(); run(); }
  });
  by("complete-run").addEventListener("click", run);
  by("complete-stop").addEventListener("click", stopCompletion);
  by("complete-undo").addEventListener("click", () => {
    area.value = undone.pop() ?? area.value;
    kept(sessionStorage, "text", area.value);
    running(false);
  });
}
