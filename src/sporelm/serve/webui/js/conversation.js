// A conversation as this page holds it, and how it is saved: only what changed, on top of the version it was made from.
import { ask, ApiError } from "./api.js";
import { notice, randomId } from "./dom.js";
import { t } from "./i18n.js";
import { restore } from "./images.js";
import { emit } from "./state.js";
import { find, hasForked, leaf, staysOn } from "./tree.js";
import { Waiting } from "./waiting.js";

const PATH = "api/ui/conversations";
const FIELDS = ["title", "kind", "model", "system", "settings", "current"];
const RETRY = 5000; // ms

const wellFormed = (text) => text.toWellFormed?.() ?? text;

export class Conversation {
  answering = null; // {message, waiting, controller} while the server writes an answer; controller until it has begun
  trouble = null; // the error of the last save, until one succeeds
  newId = randomId(); // under which it is first kept: if that is done twice, it is still one
  #changed = new Set(); // ids of messages
  #fields = new Set();
  #removed = new Set(); // ids
  #known = new Set(); // ids of messages that the server has
  #expected = new Set(); // ids of answers that the server is asked for, and may not have
  #text = ""; // of kind completion: what it was when it was last kept, or read
  #saving = null;
  #flying = null; // what is being saved: {changed, fields, removed}
  isDeleted = false; // elsewhere
  #again = false;
  #dropped = false;
  #toldOf = ""; // the last trouble, which is told once

  constructor(data) {
    this.data = data;
    if (data.id) this.#text = data.messages[0]?.content;
    if (data.id) this.#known = new Set(data.messages.map(({ id }) => id));
    const message = data.answering && find(data, data.answering);
    delete data.answering;
    if (message) this.follow(message);
  }

  /** A new one, which the server hears of when it is first saved. */
  static fresh(fields) {
    return new Conversation({ title: "", kind: "chat", model: "", system: "", settings: {}, messages: [], current: null, ...fields });
  }

  static async load(id) {
    return new Conversation(await ask("GET", `${PATH}/${id}`));
  }

  get id() {
    return this.data.id ?? null;
  }

  get title() {
    return this.data.title || t("untitled");
  }

  add(fields) {
    const message = { id: randomId(), created: Date.now(), content: "", ...fields };
    this.data.messages.push(message);
    this.touch(message);
    this.set("current", message.id);
    return message;
  }

  /** Show the place of an answer that the server is asked for. The message is the server's: it is never sent from here. */
  expect(fields, controller) {
    const known = find(this.data, fields.id);
    const message = known ?? { created: Date.now(), role: "assistant", content: "", ...fields };
    if (!known) {
      this.data.messages.push(message);
      this.#expected.add(message.id);
    }
    this.data.current = message.id;
    this.follow(message, controller);
    return this.answering;
  }

  /** The server writes a message, or is asked to. */
  follow(message, controller = null) {
    delete message.finish;
    delete message.error;
    const waiting = this.answering?.message === message ? this.answering.waiting : new Waiting(() => emit("grown", this, message));
    this.answering = { message, waiting, controller };
  }

  /** The server writes an answer, which this page may not know yet. */
  adopt(fields) {
    let message = find(this.data, fields.id);
    if (!message) {
      message = { ...fields };
      this.data.messages.push(message);
      if (this.data.current === fields.parent) this.data.current = fields.id;
      else if (hasForked({ ...this.data, messages: this.data.messages.slice(0, -1) }, this.data)) notice(t("went_on"));
    }
    this.#known.add(message.id);
    this.#expected.delete(message.id);
    this.follow(Object.assign(message, fields));
  }

  /** The server has ended the answer: `fields` is how it stored it. Without any it is a question without an answer. */
  settle(fields) {
    const { message, waiting } = this.answering;
    waiting.over();
    this.answering = null;
    this.#expected.delete(message.id);
    if (!fields) {
      this.data.messages = this.data.messages.filter((other) => other !== message);
      if (this.data.current === message.id) this.data.current = message.parent;
      return message;
    }
    for (const name of ["finish", "error"]) delete message[name];
    this.#known.add(message.id);
    return Object.assign(message, fields);
  }

  /** Store why an answer failed. */
  fail(fields) {
    const message = this.settle(fields);
    this.touch(message);
    this.set("current", message.id);
    return message;
  }

  /** The server has made a new version by what this page knows of: an answer's beginning or end. False if there is more. */
  advance(version) {
    if (version === this.data.version + 1 && !this.#saving) this.data.version = version;
    return version <= this.data.version;
  }

  /** Take over what is stored, where that is a later version or `anyway`. Throws an ApiError. */
  async catchUp(version, anyway = false) {
    await this.#saving;
    if (!this.id || this.#dropped || (version <= this.data.version && !anyway)) return;
    const other = await ask("GET", `${PATH}/${this.id}`);
    if (this.#saving || (other.version <= this.data.version && !anyway)) return; // what is being saved will find it
    this.#join(other, this.#changed, this.#fields, this.#removed);
  }

  /** A message has changed. */
  touch(message) {
    this.#changed.add(message.id);
  }

  /** Take a message away with all that follow it; what is shown then is another version of it, or what it followed. */
  remove(message) {
    const { data } = this;
    const gone = new Set([message.id]);
    for (const { id, parent } of data.messages) if (gone.has(parent)) gone.add(id);
    data.messages = data.messages.filter(({ id }) => !gone.has(id));
    gone.forEach((id) => this.#changed.delete(id));
    this.#removed.add(message.id);
    const others = data.messages.filter(({ parent }) => parent === message.parent);
    const next = others.at(-1)?.id ?? (find(data, message.parent) ? message.parent : null);
    if (!find(data, data.current)) this.set("current", next && leaf(data, next));
  }

  set(name, value) {
    this.data[name] = value;
    this.#fields.add(name);
  }

  get unsaved() {
    return this.#changed.size + this.#fields.size + this.#removed.size > 0 || this.#saving !== null;
  }

  /** It is being deleted: whatever comes now is not kept. */
  drop() {
    this.answering?.controller?.abort();
    this.#dropped = true;
  }

  /** It was deleted elsewhere: nothing is saved until the reader keeps a copy. */
  lose() {
    if (this.#dropped) return;
    this.#dropped = this.isDeleted = true;
    if (this.answering?.controller) this.answering.controller.abort();
    else if (this.answering) this.settle({ finish: "cancelled" });
    for (const name of ["changed", "settled", "erased"]) emit(name, this);
  }

  /** Save it as a new one. */
  keep() {
    this.#dropped = this.isDeleted = false;
    this.#renew();
    emit("erased", this);
    this.save();
  }

  /** Whether nothing can be asked here; then says so. */
  refuses() {
    if (this.isDeleted) notice(t("keep_first"), "bad");
    return this.isDeleted;
  }

  /** It was not deleted after all. */
  revive() {
    this.#dropped = false;
    this.save();
  }

  /** Save what changed; calls meanwhile join. Never throws: what went wrong is shown, and kept for the next time. */
  save() {
    this.#again = true;
    this.#saving ??= this.#drain().finally(() => { this.#saving = null; });
    return this.#saving;
  }

  /**
   * Save while the page is being closed: its result is not received, and browsers limit the size of such a request. So it
   * repeats what is being saved, whichever of the two arrives first.
   */
  flush() {
    const flying = this.#flying;
    const all = (own, under) => new Set([...(under ?? []), ...own]);
    const [changed, fields] = [all(this.#changed, flying?.changed), all(this.#fields, flying?.fields)];
    const removed = all(this.#removed, flying?.removed);
    if (this.#dropped || !(changed.size + fields.size + removed.size) || !(this.data.messages.length || this.id)) return;
    const { version } = this.data;
    if (!this.id && !flying) {
      ask("POST", PATH, { body: this.#whole(), keepalive: true }).catch(() => {});
      return;
    }
    const versions = this.id ? [version, ...(flying ? [version + 1] : [])] : [1];
    const body = { ...this.#change(changed, fields, removed), version: versions };
    ask("PATCH", `${PATH}/${this.id ?? this.newId}`, { body, keepalive: true }).catch(() => {});
  }

  async #drain() {
    while (this.#again && !this.#dropped && (this.data.messages.length || this.id)) {
      this.#again = false;
      const [changed, fields, removed] = [this.#changed, this.#fields, this.#removed];
      [this.#changed, this.#fields, this.#removed] = [new Set(), new Set(), new Set()];
      this.#flying = { changed, fields, removed };
      try {
        await this.#write(changed, fields, removed);
        this.#toldOf = "";
        this.trouble = null;
      } catch (error) {
        changed.forEach((id) => this.#changed.add(id));
        fields.forEach((name) => this.#fields.add(name));
        removed.forEach((id) => this.#removed.add(id));
        if (!(error instanceof ApiError)) throw error;
        this.trouble = error;
        if (this.isDeleted) return;
        if (error.status === 401) emit("key-needed");
        else if (error.status && error.message !== this.#toldOf) notice(t("not_saved", { reason: error.message }), "bad");
        this.#toldOf = error.message;
        if (error.status === 0 || error.status === 429 || error.status >= 500) setTimeout(() => this.save(), RETRY);
        return;
      } finally {
        this.#flying = null;
      }
    }
  }

  async #write(changed, fields, removed, tries = 5) {
    if (!this.id) {
      const body = this.#whole();
      try {
        this.#first(await ask("POST", PATH, { body, keepalive: true }));
        this.#known = new Set(body.messages.map(({ id }) => id));
        this.#text = body.messages[0]?.content;
      } catch (error) {
        if (error.code === "image_missing" && tries > 0 && await restore(this.data)) {
          await this.#write(changed, fields, removed, 0);
          return;
        }
        if (error.status !== 409) throw error;
        const there = await ask("GET", `${PATH}/${this.newId}`); // kept before; only the answer to that was lost
        this.#first(there);
        this.#join(there, changed, fields, removed);
        await this.#write(changed, fields, removed, tries);
      }
      emit("saved", this, true);
      return;
    }
    if (!changed.size && !fields.size && !removed.size) return;
    const body = this.#change(changed, fields, removed);
    try {
      const kept = await ask("PATCH", `${PATH}/${this.id}`, { body, keepalive: true }); // the page may go away meanwhile
      this.#text = body.messages?.[0].content ?? this.#text;
      Object.assign(this.data, { version: kept.version, updated: kept.updated });
      changed.forEach((id) => this.#known.add(id));
      emit("saved", this, false);
    } catch (error) {
      if (this.#dropped) return;
      if (error.status === 404) { // deleted elsewhere, while it was open here
        if (this.data.kind === "chat") {
          this.lose();
          throw error;
        }
        this.#renew();
      } else if (error.code === "image_missing" && tries > 0 && await restore(this.data)) {
        tries = 1; // deleted meanwhile, with the last message elsewhere that showed them
      } else if (error.status === 409 && tries > 0) {
        const other = await ask("GET", `${PATH}/${this.id}`);
        if (this.data.kind === "completion" && changed.size && other.messages[0]?.content !== this.#text) {
          notice(t("kept_beside")); // of two texts no tree can be made
          this.#renew();
        } else {
          this.#join(other, changed, fields, removed);
        }
      } else {
        throw error;
      }
      await this.#write(changed, fields, removed, tries - 1);
    }
  }

  /** What is here is kept as a new one. */
  #renew() {
    delete this.data.id;
    this.newId = randomId();
  }

  #first({ id, version, created, updated }) {
    Object.assign(this.data, { id, version, created, updated });
  }

  /** The fields as they are sent: of an answer that has not begun the server knows nothing. */
  #sentFields(names) {
    const body = Object.fromEntries([...names].map((name) => [name, this.data[name]]));
    if (this.#expected.has(body.current)) body.current = find(this.data, body.current).parent;
    return body;
  }

  #sentMessages(isWanted = () => true) {
    return this.data.messages
      .filter((message) => message !== this.answering?.message && !this.#expected.has(message.id) && isWanted(message))
      .map((message) => this.#sent(message));
  }

  #whole() {
    return { id: this.newId, ...this.#sentFields(FIELDS), messages: this.#sentMessages() };
  }

  #change(changed, fields, removed) {
    const messages = this.#sentMessages((message) => changed.has(message.id));
    return { version: this.data.version, ...this.#sentFields(fields), ...(messages.length ? { messages } : {}), ...(removed.size ? { remove: [...removed] } : {}) };
  }

  /** Another tab has saved: take over what it changed, besides what was changed here. */
  #join(other, changed, fields, removed) {
    let ended = null; // the answer that was being written, if it has finished
    const written = this.answering?.message; // the stream of events has more of it than is stored
    const before = { ...this.data };
    const gone = new Set([...removed, ...this.#removed]);
    const ours = new Map(this.data.messages.map((message) => [message.id, message]));
    const left = other.messages.filter(({ id, parent }) => !(gone.has(id) || gone.has(parent)) || !gone.add(id));
    const theirs = left.map((message) => {
      const mine = ours.get(message.id);
      ours.delete(message.id);
      if (!mine) return message;
      if (mine === written && message.finish && other.answering !== mine.id) { // it has ended
        this.answering.waiting.over();
        ended = { message: mine, isOurs: Boolean(this.answering.mine || this.answering.controller) };
        this.answering = null;
        this.#expected.delete(mine.id);
        return Object.assign(mine, message);
      }
      return mine === written || changed.has(mine.id) || this.#changed.has(mine.id) ? mine : Object.assign(mine, message);
    });
    // Messages that only this page has are kept if they are new or changed here, with their parents; others were deleted.
    const mine = [...ours.values()].reverse();
    const stays = new Set();
    for (const { id, parent } of mine) {
      if (this.#expected.has(id)) {
        stays.add(id).add(parent);
        continue;
      }
      if (!stays.has(id) && this.#known.has(id) && !changed.has(id) && !this.#changed.has(id)) continue;
      stays.add(id).add(parent);
      changed.add(id);
    }
    this.data.messages = [...theirs, ...mine.reverse().filter(({ id }) => stays.has(id))];
    this.#known = new Set(other.messages.map(({ id }) => id));
    if (this.answering && !find(this.data, written.id)) { // another page has deleted it, and so the server writes it no more
      this.answering.waiting.over();
      this.answering = null;
    }
    for (const name of FIELDS) if (!fields.has(name) && !this.#fields.has(name)) this.data[name] = other[name];
    if (!fields.has("current") && !this.#fields.has("current")) this.data.current = staysOn(this.data, before.current);
    if (!find(this.data, this.data.current)) {
      this.data.current = this.data.messages.at(-1)?.id ?? null;
      fields.add("current");
    }
    if (!this.answering && other.answering && find(this.data, other.answering)) this.follow(find(this.data, other.answering));
    this.data.version = other.version;
    this.#text = other.messages[0]?.content;
    if (this.data.kind === "chat" && hasForked(before, this.data)) notice(t("went_on"));
    emit("changed", this);
    if (ended) emit("ended", this, ended.message, ended.isOurs);
  }

  /** A message as it is stored. */
  #sent(message) {
    const result = { ...message, content: wellFormed(message.content) };
    if (message.reasoning) result.reasoning = wellFormed(message.reasoning);
    return result;
  }
}
