"""Cases of products: every format, every regime, remainders in every dimension."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.case import FORMAT_NAMES, Case, On, case
from sporelm import ops
from sporelm.quant import FORMATS

TOKENS = (1, 2, 7, 16, 17, 33, 121)  # one, few (to 16), many; one past a block of 120
BLOCK_SHAPES = ((1, 32), (7, 96), (33, 320), (50, 96), (65, 32))  # out, width: odd numbers of 32-blocks too
ODD_SHAPES = ((1, 1), (7, 33), (33, 7), (50, 129), (65, 257))  # one past a chunk of 128 columns


def shapes(form: str) -> tuple[tuple[int, int], ...]:
    return BLOCK_SHAPES if FORMATS[form].values > 1 else (*BLOCK_SHAPES, *ODD_SHAPES)


def linear(on: On, form: str, out: int, width: int, tokens: int, biased: bool) -> Any:
    weight = on.weight(form, out, width)
    bias = (on.tensor(on.values(out)),) if biased else ()
    return ops.linear(on.rows(tokens, width), weight, *bias)


def group(on: On, form: str, outs: tuple[int, ...], tokens: int, biased: bool) -> Any:
    weights = tuple(on.weight(form, out, 96) for out in outs)
    biases = (tuple(on.tensor(on.values(out)) for out in outs),) if biased else ()
    return ops.linear_group(on.rows(tokens, 96), weights, *biases)


def partly_biased(on: On, form: str, tokens: int) -> Any:
    """A bias for the second of three products only."""
    weights = tuple(on.weight(form, out, 96) for out in (33, 50, 7))
    return ops.linear_group(on.rows(tokens, 96), weights, (None, on.tensor(on.values(50)), None))


def gated(on: On, form: str, out: int, width: int, tokens: int) -> Any:
    return ops.linear_silu_mul(on.rows(tokens, width), on.weight(form, out, width), on.weight(form, out, width))


def scaled(on: On, form: str, tokens: int, weights: float, activations: float) -> Any:
    """Weights and activations far from 1."""

    def change(matrix: np.ndarray) -> None:
        matrix *= np.float32(weights)

    return ops.linear(on.rows(tokens, 96, scale=activations), on.weight(form, 33, 96, change))


def with_zeros(on: On, form: str, tokens: int) -> Any:
    """Blocks of zeros in weights and activations."""

    def change(matrix: np.ndarray) -> None:
        matrix[::2, 32:64] = 0
        matrix[5] = 0

    x = on.values(tokens, 96)
    x[0] = 0
    x[-1, :32] = 0
    return ops.linear(on.tensor(x), on.weight(form, 33, 96, change))


def small_activations(on: On, form: str, tokens: int, peak: float) -> Any:
    """Rows whose 127 / peak leaves float32, beside one plain value that keeps the results apart from zero."""
    x = on.values(tokens, 96, scale=peak)
    x[:, 40] = 1
    return ops.linear(on.tensor(x), on.weight(form, 33, 96))


def with_nan(on: On, form: str, tokens: int) -> Any:
    """NaN and infinity in one row: they must show there, and in no other row."""
    x = on.values(tokens, 96)
    x[tokens // 2, 70] = np.nan
    return ops.linear(on.tensor(x), on.weight(form, 33, 96))


def raw_blocks(on: On, form: str, tokens: int) -> Any:
    """Every pattern of a block's small integers, with scales from subnormal halves to large ones."""
    kind = FORMATS[form]
    blocks = on.random.integers(0, 256, (33 * 3, kind.nbytes), dtype=np.uint8)
    halves = np.array([2.0**-24, 6e-5, 1.0, -0.5, 1000.0, 0.0], np.float16)
    count = 1 if form == "Q8_0" else 2  # Q4_1 has a minimum beside its scale
    chosen = halves[on.random.integers(0, len(halves), (len(blocks), count))]
    blocks[:, : 2 * count] = chosen.view(np.uint8)
    return ops.linear(on.rows(tokens, 96), on.pack(kind, (33, 96), blocks))


def cases() -> Iterator[Case]:
    for form in FORMAT_NAMES:
        for out, width in shapes(form):
            for tokens in TOKENS:
                yield case("linear", f"{form} {out}x{width} x{tokens}", linear, form, out, width, tokens, False)
        for tokens in TOKENS:
            yield from of_tokens(form, tokens)
        for tokens in (1, 7, 33):
            for weights, activations in ((1.0, 1e30), (1.0, 1e-30), (1e4, 1.0), (1e-4, 1e20)):
                name = f"{form} scales {weights:g} {activations:g} x{tokens}"
                yield case("linear", name, scaled, form, tokens, weights, activations)
            for peak in (1e-36, 1e-37, 1e-40, 1e-45):
                yield case("linear", f"{form} peak {peak:g} x{tokens}", small_activations, form, tokens, peak)
            yield case("linear", f"{form} zero blocks x{tokens}", with_zeros, form, tokens)
            yield case("linear", f"{form} NaN x{tokens}", with_nan, form, tokens)
            if FORMATS[form].values > 1:
                yield case("linear", f"{form} any block x{tokens}", raw_blocks, form, tokens)


def of_tokens(form: str, tokens: int) -> Iterator[Case]:
    yield case("linear", f"{form} bias 50x96 x{tokens}", linear, form, 50, 96, tokens, True)
    for outs in ((96, 33, 7), (1, 50), (16, 160, 16)):
        few = len(outs) == 3  # weights decide the kernels: two and three on the best target, three on the others
        yield case("linear_group", f"{form} {outs} x{tokens}", group, form, outs, tokens, False, common=few)
        yield case("linear_group", f"{form} {outs} bias x{tokens}", group, form, outs, tokens, True, rare=not few)
    yield case("linear_group", f"{form} one bias x{tokens}", partly_biased, form, tokens)
    for out, width in ((33, 96), (1, 32), (50, 320), (160, 32)):
        yield case("linear_silu_mul", f"{form} {out}x{width} x{tokens}", gated, form, out, width, tokens)
