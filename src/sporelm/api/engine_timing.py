"""Benchmark runs of the engine: random prompts, greedy sampling, no end of text.

Each run resets the prefix cache first. Its prompts are then written to physical pages that the run before already
touched. The first write to a page is slow where the system allocates memory lazily.
"""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from sporelm.engine import Engine, KvSequence, Request
from sporelm.engine.request import parse_int
from sporelm.errors import RequestError

BATCH_PROMPT = 128  # prompt tokens of each sequence of a batch if no depth is given


def time_prefill(engine: Engine, n: int, adapter_id: int = 0) -> float:
    """Return the seconds from submitting a random prompt of n tokens to its first token."""
    check_min("n", n)
    prompts = [random_ids(engine, n)]
    reset_prefix_cache(engine)
    start = perf_counter()
    run_batch(engine, prompts, 1, [None], adapter_id)
    return perf_counter() - start


def time_decode(engine: Engine, n: int, batch: int = 1, depth: int = 0, adapter_id: int = 0) -> float:
    """Return the seconds to decode n tokens in each of `batch` sequences, batched.

    Each sequence holds a random prompt of `depth` tokens before the clock starts. With depth 0 a single sequence starts
    empty, and the sequences of a batch hold 128 tokens. Raises like `time_requests`.
    """
    check_min("depth", depth, minimum=0)
    held = depth or (BATCH_PROMPT if batch > 1 else 0)
    check_fits(engine, n, batch, held)
    reset_prefix_cache(engine)
    sequences = [engine.sequence() for _ in range(batch)]
    try:
        # The prefill step also samples a token, before the clock starts. An empty sequence's first token is timed.
        prompts = [random_ids(engine, held or 1) for _ in sequences]
        if held:
            prompts = [request.context_ids for request in run_batch(engine, prompts, 1, sequences, adapter_id)]
        start = perf_counter()
        run_batch(engine, prompts, n, sequences, adapter_id)
        return perf_counter() - start
    finally:
        for sequence in sequences:
            engine.drop(sequence)


def time_requests(engine: Engine, n: int, batch: int, prompt: int, adapter_id: int = 0) -> float:
    """Return the seconds from submitting `batch` random prompts of `prompt` tokens until each has n more tokens.

    Raises RequestError for more sequences than run in one batch, or more tokens than the context holds.
    """
    check_min("prompt", prompt)
    check_fits(engine, n, batch, prompt)
    prompts = [random_ids(engine, prompt) for _ in range(batch)]
    reset_prefix_cache(engine)
    start = perf_counter()
    run_batch(engine, prompts, n, [None] * batch, adapter_id)
    return perf_counter() - start


def reset_prefix_cache(engine: Engine) -> None:
    """Remove all free KV pages from the prefix cache. Pages of live sequences stay."""
    engine.kv_cache.pages.uncache_all()


def run_batch(
    engine: Engine, prompts: Sequence[list[int]], n: int, sequences: Sequence[KvSequence | None], adapter_id: int = 0
) -> list[Request]:
    """Continue all prompts by n tokens in one batch, and return the requests."""
    pairs = zip(prompts, sequences, strict=True)
    requests = [Request(prompt, max_tokens=n, sequence=sequence, adapter_id=adapter_id) for prompt, sequence in pairs]
    for request in requests:
        engine.add(request)
    engine.run(requests)
    return requests


def check_fits(engine: Engine, n: int, batch: int, held: int) -> None:
    """Raise RequestError unless `batch` sequences of `held` + n tokens run in one batch.

    Otherwise some would wait or end early, and the measured time would be wrong.
    """
    check_min("n", n)
    check_min("batch", batch)
    if batch > engine.limits.max_batch:
        raise RequestError(f"batch is {batch}: at most {engine.limits.max_batch} run in one batch; raise max_batch")
    engine.limits.check_prompt(held)
    if held + n > engine.limits.max_context:
        raise RequestError(f"{held} + {n} tokens are more than the context of {engine.limits.max_context} holds")


def check_min(name: str, value: int, minimum: int = 1) -> None:
    """Raise RequestError unless `value` is a whole number of at least `minimum`."""
    if parse_int(name, value) < minimum:
        raise RequestError(f"{name} is {value}: it must be at least {minimum}")


def random_ids(engine: Engine, count: int) -> list[int]:
    """Return random token ids, different at every call."""
    ids: list[int] = np.random.default_rng().integers(0, engine.limits.vocab, count).tolist()
    return ids
