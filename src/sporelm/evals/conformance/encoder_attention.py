"""Cases of ops on whole texts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import Case, On, case

# rows of each text: one; shorter than a tile, a tile, one more; pages and splits of 256 with and without a rest
TEXTS = ((1,), (5, 16, 17, 1), (64, 65, 3), (300, 0, 40, 256))
REACHES = (None, 0, 3, 64, 100)
HEADS = ((64, 1, 3), (2, 1, 3), (26, 3, 2), (16, 7, 1), (80, 2, 2), (128, 4, 1))  # head_dim, group, key heads


def attended(
    on: On,
    heads: tuple[int, int, int],
    texts: tuple[int, ...],
    half_window: int | None,
    gain: float,
    slope: float = 0.0,
    bias: float = 0.0,
) -> Any:
    head_dim, group, kv_heads = heads
    tokens, narrow = sum(texts), head_dim * kv_heads
    given = (on.rows(tokens, narrow * group, scale=gain), on.rows(tokens, narrow), on.rows(tokens, narrow))
    starts = on.ints(np.concatenate([[0], np.cumsum(texts)]))
    more = [on.tensor(np.abs(on.values(group * kv_heads, scale=slope)))] if slope else []
    more += [*([] if slope else [None]), on.rows(group * kv_heads, 640, scale=bias)] if bias else []
    return ops.encoder_attention(
        *given, starts, *more, head_dim=head_dim, scale=head_dim**-0.5, half_window=half_window
    )


def attend_disentangled(on: On, heads: tuple[int, int], texts: tuple[int, ...], buckets: int) -> Any:
    head_dim, count = heads
    tokens, width = sum(texts), head_dim * count
    rows = [on.rows(tokens, width) for _ in range(3)]
    of_rows, of_keys = (on.rows(tokens, count * 2 * buckets) for _ in range(2))
    starts = on.ints(np.concatenate([[0], np.cumsum(texts)]))
    options = {"head_dim": head_dim, "scale": (3 * head_dim) ** -0.5, "buckets": buckets, "max_distance": 128}
    return ops.disentangled_attention(*rows, starts, of_rows, of_keys, **options)


def averaged(on: On, width: int, texts: tuple[int, ...]) -> Any:
    bounds = np.concatenate([[0], np.cumsum(texts)])
    return ops.mean_rows(on.rows(sum(texts), width), on.ints(bounds[:-1]), on.ints(bounds[1:]))


def cases() -> Iterator[Case]:
    for width in (1, 16, 33, 320):
        for texts in TEXTS[:3]:
            yield case("mean_rows", f"{width} of {texts}", averaged, width, texts, common=width in (16, 33))
    for heads in HEADS:
        for texts in TEXTS:
            for half_window in REACHES:
                name = f"{heads} {texts} reach {half_window}"
                marks = {"common": heads in HEADS[:3:2] and half_window in (None, 64), "rare": heads not in HEADS[:4]}
                yield case("encoder_attention", name, attended, heads, texts, half_window, 1.0, **marks)
    for heads in HEADS[:3]:
        for half_window, slope in ((None, 0.1), (None, 2.0), (64, 0.5)):
            name = f"{heads} {TEXTS[3]} reach {half_window} slopes of {slope:g}"
            marks = {"common": heads == HEADS[0]}
            yield case("encoder_attention", name, attended, heads, TEXTS[3], half_window, 1.0, slope, **marks)
    for heads in HEADS:
        for texts in TEXTS:
            for half_window, slope in ((None, 0.0), (64, 0.5)):
                name = f"{heads} {texts} reach {half_window} slopes of {slope:g} biases"
                marks = {"common": heads == HEADS[0], "rare": heads not in HEADS[:4]}
                yield case("encoder_attention", name, attended, heads, texts, half_window, 1.0, slope, 3.0, **marks)
    for own in ((64, 2), (10, 7), (2, 1)):
        for texts in TEXTS:
            for buckets in (2, 32):
                marks = {"common": own == (10, 7) and buckets == 32, "rare": own == (2, 1)}
                yield case(
                    "disentangled_attention",
                    f"{own} {texts} buckets {buckets}",
                    attend_disentangled,
                    own,
                    texts,
                    buckets,
                    **marks,
                )
    for gain in (0.0, 8.0):
        name = f"{HEADS[0]} {TEXTS[3]} queries of {gain:g}"
        yield case("encoder_attention", name, attended, HEADS[0], TEXTS[3], None, gain)
