// The tree of a conversation's messages. Pure functions of `data.messages` ({id, parent, ...}) and `data.current`.

export const find = (data, id) => data.messages.find((message) => message.id === id);

export const children = (data, parent) => data.messages.filter((message) => message.parent === parent);

/** The messages from the first to `id`, which are what is shown and what the model is told. */
export function path(data, id = data.current) {
  const known = new Map(data.messages.map((message) => [message.id, message]));
  const result = [];
  for (let message = known.get(id); message; message = known.get(message.parent)) result.unshift(message);
  return result;
}

/** The other versions of a message, itself included, the oldest first. */
export const versions = (data, message) =>
  children(data, message.parent).filter((other) => other.role === message.role);

/** The newest end of the branch that goes through a message. */
export function leaf(data, id) {
  for (let next = id; ;) {
    const last = children(data, next).at(-1);
    if (!last) return next;
    next = last.id;
  }
}

/** The end of the branch to show of `data` that another tab changed: that of `own`, unless what is newest goes on from there. */
export const staysOn = (data, own) =>
  (find(data, own) && !path(data).some(({ id }) => id === own) ? own : data.current);

/** Whether `now` has messages that `before` had not, and that leave the branch it shows for another. */
export function hasForked(before, now) {
  const shown = new Set([...path(before), ...path(now)].map(({ id }) => id));
  const known = new Set(before.messages.map(({ id }) => id));
  return now.messages.some(({ id, parent }) => !known.has(id) && !shown.has(id) && (parent === null || shown.has(parent)));
}
