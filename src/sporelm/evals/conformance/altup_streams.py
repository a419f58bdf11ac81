"""Cases of rows that are several streams, and of feed-forward blocks that are thinned."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case


def of_rows(on: On, name: str, tokens: int, others: int, width: int, scale: float) -> Any:
    x = on.rows(tokens, width)
    return ops.ALL[name](x, tuple(on.rows(tokens, width, scale=scale) for _ in range(others)))


def of_nan(on: On, name: str) -> Any:
    """NaN in one number of one row of the second stream: it shows in all of that row's stream."""
    values = on.values(3, 33)
    values[1, 30] = np.nan
    return ops.ALL[name](on.rows(3, 33), (on.tensor(values), on.rows(3, 33)))


def one(on: On, tokens: int, streams: int, width: int) -> Any:
    return ops.stream(on.tensor(on.values(tokens, streams, width)), index=streams - 1)


def predicted(on: On, tokens: int, streams: int, width: int) -> Any:
    return ops.altup_predict(on.tensor(on.values(tokens, streams, width)), on.rows(tokens, streams * streams))


def corrected(on: On, name: str, tokens: int, streams: int, width: int) -> Any:
    given = on.tensor(on.values(tokens, streams, width)), on.rows(tokens, width), on.rows(tokens, streams)
    last = on.tensor(on.values(width)) if name == "altup_first" else on.rows(tokens, width)
    return ops.ALL[name](*given, last)


def thinned_nan(on: On) -> Any:
    values = on.values(3, 33)
    values[1, 30] = np.nan
    return ops.gaussian_topk(on.tensor(values), factor=0.5)


def thinned(on: On, tokens: int, width: int, factor: float, shift: float) -> Any:
    return ops.gaussian_topk(on.tensor(on.values(tokens, width) + shift), factor=factor)


def cases() -> Iterator[Case]:
    for tokens, streams, width in ((1, 4, 33), (7, 4, 16), (33, 2, 7), (2, 3, 320)):
        name, common = f"{tokens}x{streams}x{width}", width == 33
        for kind in ("spread_streams", "merge_streams"):
            yield case(kind, name, of_rows, kind, tokens, streams - 1, width, 3.0, common=common)
        yield case("stream", name, one, tokens, streams, width, exact=True, common=common)
        yield case("altup_predict", name, predicted, tokens, streams, width, common=common)
        for kind in ("altup_first", "altup_correct"):
            yield case(kind, name, corrected, kind, tokens, streams, width, common=common)
        yield case("gaussian_topk", name, thinned, tokens, width * 3, 1.6448536, 0.0, common=common)
    for kind in ("spread_streams", "merge_streams"):
        yield case(kind, "next to nothing", of_rows, kind, 2, 2, 33, 1e-4)
        yield case(kind, "NaN", of_nan, kind, common=False)
    yield case("gaussian_topk", "NaN", thinned_nan)
    yield case("gaussian_topk", "far values", thinned, 2, 70, 0.5, 30.0)
    yield case("gaussian_topk", "more than half", thinned, 2, 70, -0.3, 0.0)
