"""Cases of products: every format, every bucket, remainders in every dimension."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from conformance.case import EACH_KIND, FEW_FORMATS, FORMAT_NAMES, Case, On, case, width_of
from sporelm import ops
from sporelm.evals.conformance import ALIKE
from sporelm.quant import FORMATS
from sporelm.quant.random_blocks import SCALE_OFFSETS, replace_scales

TOKENS = (1, 2, 7, 16, 17, 33, 121)  # one, few (to 16 or more), many; one past a block of 120
MAIN = (1, 7, 121)  # one of each kernel, for lesser targets
SHAPES = ((1, 1), (7, 3), (33, 10), (50, 3), (65, 1))  # out, blocks of width: odd numbers too, one past a chunk of 8
SUPER_SHAPES = ((1, 1), (7, 3), (33, 1), (50, 2), (65, 3))
ODD_SHAPES = ((1, 1), (7, 33), (33, 7), (50, 129), (65, 257))  # out, width: one past a chunk of 128 columns


def shapes(form: str) -> tuple[tuple[int, int], ...]:
    """(out, width) of a format's matrices."""
    chosen = SUPER_SHAPES if FORMATS[form].values == 256 else SHAPES
    found = tuple((out, width_of(form, blocks)) for out, blocks in chosen)
    return found if FORMATS[form].values > 1 else (*found, *ODD_SHAPES)


def linear(on: On, form: str, out: int, width: int, tokens: int, biased: bool) -> Any:
    weight = on.weight(form, out, width)
    bias = (on.tensor(on.values(out)),) if biased else ()
    return ops.linear(on.rows(tokens, width), weight, *bias)


def group(on: On, form: str, outs: tuple[int, ...], tokens: int, biased: bool) -> Any:
    width = width_of(form, 3)
    weights = tuple(on.weight(form, out, width) for out in outs)
    biases = (tuple(on.tensor(on.values(out)) for out in outs),) if biased else ()
    return ops.linear_group(on.rows(tokens, width), weights, *biases)


def partly_biased(on: On, form: str, tokens: int) -> Any:
    """A bias for the second of three products only."""
    width = width_of(form, 3)
    weights = tuple(on.weight(form, out, width) for out in (33, 50, 7))
    return ops.linear_group(on.rows(tokens, width), weights, (None, on.tensor(on.values(50)), None))


def gated(on: On, form: str, out: int, width: int, tokens: int) -> Any:
    return ops.linear_silu_mul(on.rows(tokens, width), on.weight(form, out, width), on.weight(form, out, width))


def gelu_gated(on: On, form: str, tokens: int) -> Any:
    width = width_of(form, 3)
    gate, up = on.weight(form, 33, width), on.weight(form, 33, width)
    return ops.linear_activate_mul(on.rows(tokens, width), gate, up, kind="gelu_tanh")


def scaled(on: On, form: str, tokens: int, weights: float, activations: float) -> Any:
    """Weights and activations far from 1."""
    width = width_of(form, 3)

    def change(matrix: np.ndarray) -> None:
        matrix *= np.float32(weights)

    return ops.linear(on.rows(tokens, width, scale=activations), on.weight(form, 33, width, change))


def with_zeros(on: On, form: str, tokens: int) -> Any:
    """Blocks of zeros in weights and activations."""
    width = width_of(form, 3)
    run = width // 3

    def change(matrix: np.ndarray) -> None:
        matrix[::2, run : 2 * run] = 0
        matrix[5] = 0

    x = on.values(tokens, width)
    x[0] = 0
    x[-1, :run] = 0
    return ops.linear(on.tensor(x), on.weight(form, 33, width, change))


def small_activations(on: On, form: str, tokens: int, peak: float) -> Any:
    """Rows whose 127 / peak leaves float32, beside one plain value that keeps the results apart from zero."""
    width = width_of(form, 3)
    x = on.values(tokens, width, scale=peak)
    x[:, width // 2] = 1
    return ops.linear(on.tensor(x), on.weight(form, 33, width))


def with_nan(on: On, form: str, tokens: int, value: float) -> Any:
    """NaN or infinity in one row: it must show there, and in no other row."""
    width = width_of(form, 3)
    x = on.values(tokens, width)
    x[tokens // 2, 70] = value
    return ops.linear(on.tensor(x), on.weight(form, 33, width))


def halves_of(form: str) -> list[int]:
    """Where a block has float16 numbers, whole ones."""
    if form in SCALE_OFFSETS:
        return [] if form == "IQ1_M" else [SCALE_OFFSETS[form]]
    return [offset for offset, nbytes in FORMATS[form].words if nbytes == 2]


def set_scales(form: str, blocks: np.ndarray, choose: Callable[[], np.ndarray]) -> None:
    """Give blocks plain scales: `choose` gives one a block, [n, 1]. MXFP4's are powers of two of that size."""
    for offset in halves_of(form):
        blocks[:, offset : offset + 2] = choose().astype(np.float16).view(np.uint8)
    if form == "IQ1_M":
        blocks[:] = replace_scales(FORMATS[form], blocks, choose()[:, 0].astype(np.float16))
    if form == "MXFP4":
        blocks[:, :1] = np.frexp(choose())[1] + 126


def least_scales(on: On, form: str, tokens: int) -> Any:
    """MXFP4's least exponents: scales that float32 has as subnormal numbers, and those next to them."""
    width = width_of(form, 3)
    blocks = on.random.integers(0, 256, (33 * 3, FORMATS[form].nbytes), dtype=np.uint8)
    blocks[:, 0] = on.random.integers(0, 4, len(blocks))
    return ops.linear(on.rows(tokens, width, scale=1e30), on.pack(FORMATS[form], (33, width), blocks))


def raw_blocks(on: On, form: str, tokens: int) -> Any:
    """Every pattern of a block's small integers, with scales from subnormal halves to large ones."""
    kind = FORMATS[form]
    blocks = on.random.integers(0, 256, (33 * 3, kind.nbytes), dtype=np.uint8)
    scales = np.array([2.0**-24, 6e-5, 1.0, -0.5, 1000.0, 0.0])
    set_scales(form, blocks, lambda: scales[on.random.integers(0, len(scales), (len(blocks), 1))])
    width = width_of(form, 3)
    return ops.linear(on.rows(tokens, width), on.pack(kind, (33, width), blocks))


def extreme_blocks(on: On, form: str, tokens: int, byte: int, scale: float) -> Any:
    """Blocks of one byte alone, against activations that are all +-127: the largest sums there can be."""
    kind, width = FORMATS[form], width_of(form, 3)
    blocks = np.full((33 * 3, kind.nbytes), byte, np.uint8)
    set_scales(form, blocks, lambda: np.full((len(blocks), 1), scale))
    x = np.full((tokens, width), 127.0, np.float32)
    x[1::3] = -127
    x[2::3, ::2] = -127
    return ops.linear(on.tensor(x), on.pack(kind, (33, width), blocks))


def cases() -> Iterator[Case]:
    for form in FORMAT_NAMES:
        for out, width in shapes(form):
            for tokens in TOKENS:
                name, main = f"{form} {out}x{width} x{tokens}", tokens in MAIN and out in (33, 65)
                common = main and form not in ALIKE
                yield case("linear", name, linear, form, out, width, tokens, False, common=common)
        for tokens in TOKENS:
            yield from of_tokens(form, tokens)
        for tokens in MAIN:
            yield from of_values(form, tokens)


def of_tokens(form: str, tokens: int) -> Iterator[Case]:
    """Each is a kernel of its own. A bias, which no format knows of, is tried with few formats on lesser targets."""
    few, main = form in FEW_FORMATS, tokens in MAIN and form not in ALIKE
    rare, common = form in ALIKE or (not few and tokens not in (*MAIN, 17)), few and main
    out, width = 50, width_of(form, 3)
    name = f"{form} bias {out}x{width} x{tokens}"
    yield case("linear", name, linear, form, out, width, tokens, True, common=common, rare=rare)
    for outs in ((96, 33, 7), (16, 160, 16)):
        first = main and outs[0] == 96 and form in EACH_KIND
        name = f"{form} {outs} x{tokens}"
        yield case("linear_group", name, group, form, outs, tokens, False, common=first, rare=rare)
        name = f"{form} {outs} bias x{tokens}"
        yield case("linear_group", name, group, form, outs, tokens, True, common=common and first, rare=rare)
    for biased, words in ((False, ""), (True, " bias")):
        name = f"{form} (1, 50){words} x{tokens}"
        yield case("linear_group", name, group, form, (1, 50), tokens, biased, common=False, rare=biased or not few)
    yield case("linear_group", f"{form} one bias x{tokens}", partly_biased, form, tokens, common=common, rare=rare)
    for out, blocks in ((33, 3), (1, 1), (50, 10), (160, 1)):
        width = width_of(form, min(blocks, 2) if FORMATS[form].values == 256 else blocks)
        name, first = f"{form} {out}x{width} x{tokens}", main and out in (33, 50) and form in EACH_KIND
        yield case("linear_silu_mul", name, gated, form, out, width, tokens, common=first, rare=rare)
    name, first = f"{form} gelu_tanh x{tokens}", main and form in EACH_KIND
    yield case("linear_activate_mul", name, gelu_gated, form, tokens, common=first, rare=not first)


def of_values(form: str, tokens: int) -> Iterator[Case]:
    few = tokens == 7 and form in FEW_FORMATS
    for weights, activations in ((1.0, 1e30), (1.0, 1e-30), (1e4, 1.0), (1e-4, 1e20)):
        name = f"{form} scales {weights:g} {activations:g} x{tokens}"
        yield case("linear", name, scaled, form, tokens, weights, activations, common=few)
    for peak in (1e-36, 1e-37, 1e-40, 1e-45):
        yield case("linear", f"{form} peak {peak:g} x{tokens}", small_activations, form, tokens, peak, common=few)
    yield case("linear", f"{form} zero blocks x{tokens}", with_zeros, form, tokens, common=few)
    common = form not in ALIKE
    yield case("linear", f"{form} NaN x{tokens}", with_nan, form, tokens, np.nan, common=common)
    if form == "MXFP4":
        yield case("linear", f"{form} least scales x{tokens}", least_scales, form, tokens)
    if FORMATS[form].values > 1:
        yield case("linear", f"{form} any block x{tokens}", raw_blocks, form, tokens, common=common)
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            name = f"{form} blocks of {byte:#04x} x{tokens}"
            yield case("linear", name, extreme_blocks, form, tokens, byte, 1.0, common=common)
