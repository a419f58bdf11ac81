"""Cases of sampling on the device. Draws are compared where the reference calls them certain."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

VOCABS = (33, 1003)
KINDS = ("plain", "ties", "-inf", "flat", "spike", "unfit")
WITHOUT_FILTERS = (0.8, 0, 1, -np.inf)
OPTIONS = {  # temperature, top_k, top_p, log(min_p)
    "greedy": (0, 0, 1, -np.inf),
    "argmax": (-1, 0, 1, -np.inf),
    "all": WITHOUT_FILTERS,
    "top_k": (0.7, 20, 1, -np.inf),
    "top_p": (1.3, 0, 0.9, -np.inf),
    "min_p": (1.0, 0, 1, np.log(0.05)),
    "every filter": (0.8, 20, 0.95, np.log(0.01)),
    "tiny temperature": (1e-20, 20, 0.95, -np.inf),
    "high temperature": (100, 0, 0.999, -np.inf),
}


def random_logits(on: On, rows: int, vocab: int, kind: str) -> np.ndarray:
    values = on.values(rows, vocab, scale=3.0)
    if kind == "ties":
        return np.round(values)
    if kind == "flat":
        return values * np.float32(1e-4)
    if kind == "-inf":
        values[on.random.random(values.shape) < 0.9] = -np.inf
        values[:, vocab // 2] = 1
    if kind == "spike":
        values[np.arange(rows), on.random.integers(0, vocab, rows)] = 90
    if kind == "unfit":
        values[0, 0], values[1, -1], values[2] = np.nan, np.inf, -np.inf
    return values


def run_edits(on: On, rows: int, vocab: int, kind: str) -> Any:
    """Every place once, and the first one twice."""
    logits = random_logits(on, rows, vocab, kind)
    count = min(rows * vocab, 500)
    places = np.stack(np.unravel_index(on.random.permutation(rows * vocab)[:count], logits.shape), axis=1)
    edits = np.stack([on.values(count), np.exp(on.values(count)), on.values(count)], axis=1)
    edits[on.random.random(count) < 0.2, 2] = np.inf
    places, edits = (np.concatenate([each, each[:1]]) for each in (places, edits))
    return ops.edit_logits(on.tensor(logits), on.ints(places), on.tensor(edits))


def run_masks(on: On, rows: int, vocab: int, kind: str) -> Any:
    words = on.random.integers(-(2**31), 2**31, (5, -(-vocab // 32)))
    return ops.mask_logits(on.tensor(random_logits(on, rows, vocab, kind)), on.ints([0, 2, 1, 1, 0]), on.ints(words))


def run_draws(on: On, options: tuple[float, ...], vocab: int, kind: str, k: int) -> Any:
    rows = 9
    logits = random_logits(on, rows, vocab, kind)
    columns = np.concatenate([np.tile(np.array(options, np.float32), (rows, 1)), on.random.random((rows, 1))], axis=1)
    arguments = logits, columns.astype(np.float32)
    is_whole = options[1] == 0
    with np.errstate(all="ignore"):
        expected = ops.draw_tokens.reference(*arguments, k=k, whole=is_whole)
    found = ops.draw_tokens(*map(on.tensor, arguments), k=k, whole=is_whole).numpy()
    token = np.where(expected[:, 1] != 0, found[:, 0], expected[:, 0])  # of an uncertain draw the token is free
    return np.stack([token, *found[:, 1:].T], axis=1)


def run_border_draws(on: On, options: tuple[float, ...], vocab: int, k: int) -> Any:
    """Draw where two tokens' shares meet: no device can prove on which side the host's number lies."""
    rows, (temperature, top_k, _, min_score) = 9, options
    logits = random_logits(on, rows, vocab, "plain")
    scores = (logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
    if k:
        scores = -np.sort(-scores, axis=1)
    kept = (scores >= min_score) & (np.arange(vocab) < (top_k or vocab))
    shares = np.cumsum(np.exp(scores / temperature) * kept, axis=1)
    border = on.random.integers(0, kept.sum(axis=1) - 1)
    uniform = shares[np.arange(rows), border] / shares[:, -1]
    columns = np.concatenate([np.tile(np.array(options), (rows, 1)), uniform[:, None]], axis=1).astype(np.float32)
    return ops.draw_tokens(on.tensor(logits), on.tensor(columns), k=k, whole=not k).numpy()[:, 1:]


def run_choices(on: On, draws: int, second: int, vocab: int) -> Any:
    first, others = (
        np.stack([on.random.integers(-1, vocab, n), on.random.integers(0, 2, n)], axis=1) for n in (draws, second)
    )
    rows = np.where(on.random.random(second) < 0.2, -1, on.random.permutation(draws)[:second])
    places = np.stack([rows, on.random.integers(0, 2, second)], axis=1)
    words = on.random.integers(-(2**31), 2**31, (second, -(-vocab // 32)))
    return ops.choose_allowed(on.ints(first), on.ints(places), on.ints(words), on.ints(others))


def run_places(on: On, rows: int, columns: int) -> Any:
    values = on.random.integers(0, 1000, (rows, columns))
    return ops.place_tokens(on.ints(on.random.integers(-1, 2, rows)), on.ints(values))


def run_take(on: On, tokens: int, rows: int) -> Any:
    sources = on.random.integers(-1, rows, tokens)
    ids, sampled = on.random.integers(0, 1000, tokens), on.random.integers(-1, 1000, rows)
    return ops.take_sampled(*map(on.ints, (ids, sources, sampled)))


def run_logprobs(on: On, vocab: int, kind: str, k: int) -> Any:
    logits = on.tensor(random_logits(on, 5, vocab, kind))
    return ops.token_logprobs(logits, on.ints(on.random.integers(-1, vocab, 5)), on.ints([4, 0, 1, 2, 4, 3]), k=k)


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for vocab in VOCABS:
            marks = {"common": (kind, vocab) == ("plain", 1003), "rare": vocab == 33 and kind != "plain"}
            yield case("edit_logits", f"{kind} of {vocab}", run_edits, 3, vocab, kind, exact=True, **marks)
            yield case("mask_logits", f"{kind} of {vocab}", run_masks, 3, vocab, kind, exact=True, **marks)
            for name, options in OPTIONS.items():
                for k in sorted({20, min(300, vocab)}) if kind == "plain" else (20,):
                    shown = f"{name} {kind} {k} of {vocab}"
                    yield case("draw_tokens", shown, run_draws, options, vocab, kind, k, exact=True, **marks)
            shown = f"no candidates {kind} of {vocab}"
            yield case("draw_tokens", shown, run_draws, WITHOUT_FILTERS, vocab, kind, 0, exact=True, **marks)
            for k in (1, 20):
                yield case("token_logprobs", f"{kind} {k} of {vocab}", run_logprobs, vocab, kind, k, **marks)
    for name, k in (("all", 0), ("top_k", 44), ("min_p", 300)):
        yield case("draw_tokens", f"{name} at a border", run_border_draws, OPTIONS[name], 1003, k, exact=True)
    for draws, second in ((1, 1), (7, 3), (33, 33)):
        yield case("choose_allowed", f"{second} of {draws}", run_choices, draws, second, 1003, exact=True)
    for tokens, rows in ((1, 1), (33, 7)):
        yield case("take_sampled", f"{rows} for {tokens}", run_take, tokens, rows, exact=True)
    for rows in (1, 40):
        for columns in (2, 3):
            yield case("place_tokens", f"{rows}x{columns}", run_places, rows, columns, exact=True)
