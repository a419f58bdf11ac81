"""Cases of rows that are several streams, and of feed-forward blocks that are thinned."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from sporelm import ops
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance_case import ConformanceCase, random_values

STREAMS = 4
WIDTH = 70


def altup_cases() -> Iterator[ConformanceCase]:
    """Each op, for one row and for several."""
    for tokens in (1, 7):
        for op in (ops.spread_streams, ops.merge_streams):
            yield ConformanceCase(op.name, f"{tokens}", partial(of_rows, op=op, tokens=tokens))
        yield ConformanceCase(
            "stream", f"{tokens}", partial(of_streams, op=partial(ops.stream, index=2), tokens=tokens)
        )
        predict = partial(of_streams, op=ops.altup_predict, tokens=tokens, columns=(STREAMS * STREAMS,))
        yield ConformanceCase("altup_predict", f"{tokens}", predict)
        for name, last in (("altup_first", ()), ("altup_correct", (WIDTH,))):
            work = partial(of_streams, op=ops.ALL[name], tokens=tokens, columns=(WIDTH, STREAMS, *last))
            yield ConformanceCase(name, f"{tokens}", partial(work, scaled=not last))
        yield ConformanceCase("gaussian_topk", f"{tokens}", partial(thinned, tokens=tokens))


def of_rows(backend: Backend, *, op: ops.Op, tokens: int) -> Any:
    rows = [backend.tensor(random_values(tokens, WIDTH, seed=seed)) for seed in range(3)]
    return op(rows[0], tuple(rows[1:]))


def of_streams(backend: Backend, *, op: Any, tokens: int, columns: tuple[int, ...] = (), scaled: bool = False) -> Any:
    """`columns` of the further arguments; `scaled`: a vector after them."""
    x = backend.tensor(random_values(tokens, STREAMS, WIDTH))
    more = [backend.tensor(random_values(tokens, count, seed=seed)) for seed, count in enumerate(columns, 1)]
    return op(x, *more, *([backend.tensor(random_values(WIDTH))] if scaled else []))


def thinned(backend: Backend, *, tokens: int) -> Any:
    return ops.gaussian_topk(backend.tensor(random_values(tokens, WIDTH)), factor=1.6448536)
