// What the page knows, and who wants to hear of changes.

export const state = {
  models: [], // {id, context, chat, vision, loaded}; vision is null until that is known
  model: "", // the id that is picked
  conversation: null, // the chat that is open
  text: null, // the text that is open, a conversation of kind completion
  page: "chat",
};

const listeners = new Map();

export function on(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

export function emit(name, ...values) {
  for (const listener of listeners.get(name) ?? []) listener(...values);
}

/** Wait until one of the events is emitted, or a number of ms has passed. Rejects when `signal` is aborted. */
export function until(names, signal, ms = 0) {
  return new Promise((resolve, reject) => {
    let timer = 0;
    const end = (act, value) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      for (const name of names) listeners.set(name, (listeners.get(name) ?? []).filter((one) => one !== done));
      act(value);
    };
    const done = () => end(resolve);
    const abort = () => end(reject, signal.reason);
    if (signal?.aborted) { reject(signal.reason); return; }
    if (ms) timer = setTimeout(done, ms);
    signal?.addEventListener("abort", abort);
    for (const name of names) on(name, done);
  });
}

/** What the page that is shown is about. */
export const openOne = () => (state.page === "complete" ? state.text : state.conversation);

/** Whether the picked model reads pictures, or may. */
export const canSee = () => Boolean(pickedModel()) && pickedModel().vision !== false;

export const pickedModel = () => state.models.find((model) => model.id === state.model);
