// The time before an answer's first word: what the server is doing meanwhile, and another try where it was busy.
import { askText, events } from "./api.js";
import { number, t } from "./i18n.js";
import { pickedModel, state } from "./state.js";

const SHOWN_AFTER = 1200; // ms; a shorter wait needs no words
const ASKED_EVERY = 3000; // ms between two looks at the server's queue
const PATIENCE = 600_000; // ms for which a busy server is asked again

/** A wait; `tick` is called twice a second until it is over. */
export class Waiting {
  #start = performance.now();
  #tick;
  #timer;
  #again = 0; // when the next try is, if the server was busy
  #others = 0; // requests that wait at the server
  #asked;
  #loading = pickedModel()?.loaded === false;
  #unsent = false;

  /** With `looks` this page itself asks the server for its queue; answers of chats are told of it. */
  constructor(tick, looks = false) {
    this.#tick = tick;
    this.#asked = looks ? 0 : Infinity;
    this.#timer = setInterval(() => { this.#look(); tick(); }, 500);
  }

  /** What the server tells of the wait: {status, others, retry, seconds}. */
  told({ status, others, retry, seconds }) {
    this.#unsent = false;
    this.#loading = status === "loading";
    this.#others = others ?? 0;
    this.#again = status === "busy" ? performance.now() + retry * 1000 : 0;
    if (seconds) this.#start = performance.now() - seconds * 1000;
    this.#tick();
  }

  /** The question has not reached the server. */
  unsent(yes) {
    this.#unsent = yes;
    this.#tick();
  }

  get isOver() {
    return this.#timer === 0;
  }

  over() {
    clearInterval(this.#timer);
    this.#timer = 0;
  }

  /** The server was busy: wait a number of seconds, or until `signal`. */
  async pause(seconds, signal) {
    this.#again = performance.now() + seconds * 1000;
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, seconds * 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
    });
    this.#again = 0;
  }

  get isTooLong() {
    return performance.now() - this.#start > PATIENCE;
  }

  /** What to say of it; nothing while it is short. */
  get text() {
    const passed = performance.now() - this.#start;
    if (this.isOver || passed < SHOWN_AFTER) return "";
    if (this.#again) return t("busy_again", { n: Math.max(1, Math.ceil((this.#again - performance.now()) / 1000)) });
    if (this.#unsent) return t("unsent");
    const n = number(Math.floor(passed / 1000));
    if (this.#loading) return t("loading_model", { n });
    return this.#others ? t("queue", { n, others: number(this.#others), count: this.#others }) : t("waiting", { n });
  }

  /** Return the number of waiting requests from the server's metrics; a server that refuses is asked only once. */
  async #look() {
    const now = performance.now();
    if (now - this.#start < SHOWN_AFTER || now - this.#asked < ASKED_EVERY) return;
    this.#asked = now;
    try {
      const text = await askText("metrics");
      const name = JSON.stringify(state.model);
      const line = text.split("\n").find((each) => each.startsWith("vllm:num_requests_waiting{") && each.includes(`model_name=${name}`));
      this.#others = Math.max(0, Number(line?.split(" ").at(-1) ?? 0) || 0);
      if (!this.isOver) this.#tick();
    } catch {
      this.#asked = Infinity;
    }
  }
}

/** The events of a request; one that a busy server refuses is made again when the server says. */
export async function* patiently(path, body, signal, waiting) {
  for (;;) {
    try {
      yield* events(path, body, signal);
      return;
    } catch (error) {
      if (error.status !== 429 || waiting.isTooLong) throw error;
      await waiting.pause(error.wait, signal);
    }
  }
}
