"""Drives the engine for measurements: random prompts, greedy, no end of text."""

from time import perf_counter

import numpy as np

from sporelm.engine import Engine, Request
from sporelm.errors import RequestError

BATCH_PROMPT = 128  # tokens that each sequence of a batch holds if no depth is given


def prefill(engine: Engine, n: int) -> float:
    """Seconds from submitting a random prompt of n tokens to its first token."""
    check("n", n)
    request = Request(random_ids(engine, n), max_tokens=1)
    began = perf_counter()
    engine.add(request)
    engine.run([request])
    return perf_counter() - began


def decode(engine: Engine, n: int, batch: int = 1, depth: int = 0) -> float:
    """Seconds to decode n tokens in each of `batch` sequences, together.

    Each sequence holds a random prompt of `depth` tokens before the clock starts. A single sequence may begin empty
    (depth 0); the sequences of a batch then hold 128 tokens. Raises RequestError for more sequences than run together.
    """
    check("n", n)
    check("batch", batch)
    if depth < 0:
        raise RequestError(f"depth is {depth}: it must be at least 0")
    if batch > engine.limits.max_batch:
        raise RequestError(f"batch is {batch}: at most {engine.limits.max_batch} run together; raise max_batch")
    held = depth or (BATCH_PROMPT if batch > 1 else 0)
    # A prompt's own step gives a token too; it is taken before the clock starts, but for an empty sequence's first.
    requests = [Request(random_ids(engine, held or 1), max_tokens=n + bool(held)) for _ in range(batch)]
    try:
        for request in requests:
            engine.add(request)
        while held and any(request.num_generated == 0 for request in requests):
            engine.step()
        # While later prompts were computed, earlier sequences went on: all get n more.
        for request in requests:
            request.max_tokens = request.num_generated + n
        began = perf_counter()
        engine.run(requests)
        taken = perf_counter() - began
    finally:
        for request in requests:
            engine.cancel(request)
    if any(request.num_generated != request.max_tokens for request in requests):
        raise RequestError(f"{held} + {n} tokens are more than the context of {engine.limits.max_context} holds")
    return taken


def check(name: str, value: int) -> None:
    """Raise RequestError unless `value` is at least 1."""
    if value < 1:
        raise RequestError(f"{name} is {value}: it must be at least 1")


def random_ids(engine: Engine, count: int) -> list[int]:
    """Token ids without meaning, different every time."""
    ids: list[int] = np.random.default_rng().integers(0, engine.limits.vocab, count).tolist()
    return ids
