// How fast an answer comes: measured here while it does, then as the server says.

const SHORTEST = 0.05; // seconds over which a speed can be told

/** Measures a stream. Of an answer that goes on, `before` has the numbers of its first part. */
export class Measure {
  #before;
  #start = performance.now();
  #first = 0;
  #last = 0;
  #pieces = 0;
  #usage = null;
  #timings = null;

  constructor(before = null) {
    this.#before = before;
  }

  piece() {
    this.#last = performance.now();
    this.#first ||= this.#last;
    this.#pieces += 1;
  }

  /** What the server counted, which comes with the last piece. */
  counted(usage, timings) {
    if (usage) this.#usage = usage;
    if (timings) this.#timings = timings;
  }

  /** Numbers alone; until the server's own count comes, each piece counts as a token. */
  stats() {
    const seconds = (this.#last - this.#first) / 1000;
    const count = this.#usage?.completion_tokens ?? this.#pieces;
    const said = this.#before?.completion_tokens ?? 0;
    const result = { completion_tokens: said + count };
    const first = this.#before?.first_token_s ?? (this.#first ? (this.#first - this.#start) / 1000 : undefined);
    if (first !== undefined) result.first_token_s = first;
    if (this.#timings?.decode_tok_s > 0) result.tokens_per_s = this.#timings.decode_tok_s;
    else if (count > 1 && seconds > SHORTEST) result.tokens_per_s = (count - 1) / seconds;
    else if (!count && this.#before?.tokens_per_s) result.tokens_per_s = this.#before.tokens_per_s;
    if (!this.#usage && this.#before?.prompt_tokens) {
      result.prompt_tokens = this.#before.prompt_tokens;
      result.cached_tokens = this.#before.cached_tokens ?? 0;
    } else if (this.#usage) {
      result.prompt_tokens = Math.max(0, (this.#usage.prompt_tokens ?? 0) - said);
      result.cached_tokens = Math.min(this.#usage.prompt_tokens_details?.cached_tokens ?? 0, result.prompt_tokens);
    }
    return result;
  }
}
