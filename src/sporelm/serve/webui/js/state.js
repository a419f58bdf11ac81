// What the page knows, and who wants to hear of changes.

export const state = {
  models: [], // {id, context, chat}
  model: "", // the id that is picked
  conversation: null, // the one that is open
  page: "chat",
};

const listeners = new Map();

export function on(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

export function emit(name, ...values) {
  for (const listener of listeners.get(name) ?? []) listener(...values);
}

export const pickedModel = () => state.models.find((model) => model.id === state.model);
