"""Drives the engine for measurements: random prompts, greedy, no end of text."""

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from sporelm.engine import Engine, KvSequence, Request
from sporelm.engine.request import whole_number
from sporelm.errors import RequestError

BATCH_PROMPT = 128  # tokens that each sequence of a batch holds if no depth is given


def prefill(engine: Engine, n: int, adapter: int = 0) -> float:
    """Seconds from submitting a random prompt of n tokens to its first token; with an adapter, as everywhere here."""
    check("n", n)
    prompts = [random_ids(engine, n)]
    began = perf_counter()
    together(engine, prompts, 1, [None], adapter)
    return perf_counter() - began


def decode(engine: Engine, n: int, batch: int = 1, depth: int = 0, adapter: int = 0) -> float:
    """Seconds to decode n tokens in each of `batch` sequences, together.

    Each sequence holds a random prompt of `depth` tokens before the clock starts. A single sequence may begin empty
    (depth 0); the sequences of a batch then hold 128 tokens. Raises as `whole`.
    """
    check("depth", depth, least=0)
    held = depth or (BATCH_PROMPT if batch > 1 else 0)
    check_fits(engine, n, batch, held)
    sequences = [engine.sequence() for _ in range(batch)]
    try:
        # A prompt's own step gives a token too; it is taken before the clock starts, but for an empty sequence's first.
        prompts = [random_ids(engine, held or 1) for _ in sequences]
        if held:
            prompts = [request.known for request in together(engine, prompts, 1, sequences, adapter)]
        began = perf_counter()
        together(engine, prompts, n, sequences, adapter)
        return perf_counter() - began
    finally:
        for sequence in sequences:
            engine.drop(sequence)


def whole(engine: Engine, n: int, batch: int, prompt: int, adapter: int = 0) -> float:
    """Seconds from submitting `batch` random prompts of `prompt` tokens at once until each has n tokens more.

    Raises RequestError for more sequences than run together, or more tokens than the context holds.
    """
    check("prompt", prompt)
    check_fits(engine, n, batch, prompt)
    prompts = [random_ids(engine, prompt) for _ in range(batch)]
    began = perf_counter()
    together(engine, prompts, n, [None] * batch, adapter)
    return perf_counter() - began


def together(
    engine: Engine, prompts: Sequence[list[int]], n: int, sequences: Sequence[KvSequence | None], adapter: int = 0
) -> list[Request]:
    """The requests that continued these prompts by n tokens each, all at once."""
    pairs = zip(prompts, sequences, strict=True)
    requests = [Request(prompt, max_tokens=n, sequence=sequence, adapter=adapter) for prompt, sequence in pairs]
    for request in requests:
        engine.add(request)
    engine.run(requests)
    return requests


def check_fits(engine: Engine, n: int, batch: int, held: int) -> None:
    """Raise RequestError unless `batch` sequences run together, each of n tokens after those that are held: others
    would wait or end early, and the time would be that of something else."""
    check("n", n)
    check("batch", batch)
    if batch > engine.limits.max_batch:
        raise RequestError(f"batch is {batch}: at most {engine.limits.max_batch} run together; raise max_batch")
    engine.limits.check_prompt(held)
    if held + n > engine.limits.max_context:
        raise RequestError(f"{held} + {n} tokens are more than the context of {engine.limits.max_context} holds")


def check(name: str, value: int, least: int = 1) -> None:
    """Raise RequestError unless `value` is a whole number and at least `least`."""
    if whole_number(name, value) < least:
        raise RequestError(f"{name} is {value}: it must be at least {least}")


def random_ids(engine: Engine, count: int) -> list[int]:
    """Token ids without meaning, different every time."""
    ids: list[int] = np.random.default_rng().integers(0, engine.limits.vocab, count).tolist()
    return ids
