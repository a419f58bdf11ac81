// What the page knows, and who wants to hear of changes.

export const state = {
  models: [], // {id, context, chat, loaded}
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

/** What the page that is shown is about. */
export const openOne = () => (state.page === "complete" ? state.text : state.conversation);

export const pickedModel = () => state.models.find((model) => model.id === state.model);
