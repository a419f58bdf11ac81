"""Cases of products: every format, every bucket, remainders in every dimension."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.evals.conformance.conformance_case import EACH_KIND, FEW_FORMATS, FORMAT_NAMES, Case, On, case, width_of
from sporelm.evals.conformance.random_weights import ALIKE
from sporelm.quant import FORMATS
from sporelm.quant.random_blocks import SCALE_OFFSETS, replace_scales
from sporelm.tensor.dtype import F32

TOKENS = (1, 2, 7, 16, 17, 33, 121)  # one, few (to 16 or more), many; one past a block of 120
MAIN = (1, 7, 121)  # one of each kernel, for lesser targets
SHAPES = ((1, 1), (7, 3), (33, 10), (50, 3), (65, 1))  # out, blocks of width: odd numbers too, one past a chunk of 8
SUPER_SHAPES = ((1, 1), (7, 3), (33, 1), (50, 2), (65, 3))
ODD_SHAPES = ((1, 1), (7, 33), (33, 7), (50, 129), (65, 257))  # out, width: one past a chunk of 128 columns


def shapes(format_name: str) -> tuple[tuple[int, int], ...]:
    """(out, width) of a format's matrices."""
    chosen = SUPER_SHAPES if FORMATS[format_name].values == 256 else SHAPES
    found = tuple((out, width_of(format_name, blocks)) for out, blocks in chosen)
    return found if FORMATS[format_name].values > 1 else (*found, *ODD_SHAPES)


def linear(on: On, format_name: str, out: int, width: int, tokens: int, biased: bool) -> Any:
    weight = on.weight(format_name, out, width, _choose_signs(on, out))
    bias = (on.tensor(on.values(out)),) if biased else ()
    return ops.linear(_rows(on, tokens, width, out), weight, *bias)


def _choose_signs(on: On, out: int) -> Callable[[np.ndarray], None] | None:
    """Return what removes the signs of factors of a narrow type if each row has one result.

    Roundings of the type are small beside the terms of a sum, but not beside a result in which these cancel.
    """
    return _drop_signs if out == 1 and on.inputs is not F32 else None


def _drop_signs(values: np.ndarray) -> None:
    np.abs(values, out=values)


def _rows(on: On, tokens: int, width: int, out: int) -> Any:
    """Return rows of activations for a product with `out` results."""
    x = on.values(tokens, width)
    if change := _choose_signs(on, out):
        change(x)
    return on.tensor(x)


def group(on: On, format_name: str, outs: tuple[int, ...], tokens: int, biased: bool) -> Any:
    width = width_of(format_name, 3)
    weights = tuple(on.weight(format_name, out, width, _choose_signs(on, out)) for out in outs)
    biases = (tuple(on.tensor(on.values(out)) for out in outs),) if biased else ()
    return ops.linear_group(_rows(on, tokens, width, min(outs)), weights, *biases)


def partly_biased(on: On, format_name: str, tokens: int) -> Any:
    """A bias for the second of three products only."""
    width = width_of(format_name, 3)
    weights = tuple(on.weight(format_name, out, width) for out in (33, 50, 7))
    return ops.linear_group(on.rows(tokens, width), weights, (None, on.tensor(on.values(50)), None))


def gated(on: On, format_name: str, out: int, width: int, tokens: int) -> Any:
    x = _rows(on, tokens, width, out)
    gate, up = (on.weight(format_name, out, width, _choose_signs(on, out)) for _ in range(2))
    return ops.linear_silu_mul(x, gate, up)


def gelu_gated(on: On, format_name: str, tokens: int) -> Any:
    width = width_of(format_name, 3)
    gate, up = on.weight(format_name, 33, width), on.weight(format_name, 33, width)
    return ops.linear_activate_mul(on.rows(tokens, width), gate, up, kind="gelu_tanh")


def scaled(on: On, format_name: str, tokens: int, weights: float, activations: float) -> Any:
    """Weights and activations far from 1."""
    width = width_of(format_name, 3)

    def change(matrix: np.ndarray) -> None:
        matrix *= np.float32(weights)

    return ops.linear(on.rows(tokens, width, scale=activations), on.weight(format_name, 33, width, change))


def with_zeros(on: On, format_name: str, tokens: int) -> Any:
    """Blocks of zeros in weights and activations."""
    width = width_of(format_name, 3)
    run = width // 3

    def change(matrix: np.ndarray) -> None:
        matrix[::2, run : 2 * run] = 0
        matrix[5] = 0

    x = on.values(tokens, width)
    x[0] = 0
    x[-1, :run] = 0
    return ops.linear(on.tensor(x), on.weight(format_name, 33, width, change))


def small_activations(on: On, format_name: str, tokens: int, peak: float) -> Any:
    """Rows whose 127 / peak leaves float32, beside one plain value that keeps the results apart from zero."""
    width = width_of(format_name, 3)
    x = on.values(tokens, width, scale=peak)
    x[:, width // 2] = 1
    return ops.linear(on.tensor(x), on.weight(format_name, 33, width))


def with_nan(on: On, format_name: str, tokens: int, value: float) -> Any:
    """NaN or infinity in one row: it must show there, and in no other row."""
    width = width_of(format_name, 3)
    x = on.values(tokens, width)
    x[tokens // 2, 70] = value
    return ops.linear(on.tensor(x), on.weight(format_name, 33, width))


def halves_of(format_name: str) -> list[int]:
    """Where a block has float16 numbers, whole ones."""
    if format_name in SCALE_OFFSETS:
        return [] if format_name == "IQ1_M" else [SCALE_OFFSETS[format_name]]
    return [offset for offset, nbytes in FORMATS[format_name].words if nbytes == 2]


def set_scales(format_name: str, blocks: np.ndarray, choose: Callable[[], np.ndarray]) -> None:
    """Give blocks plain scales: `choose` gives one a block, [n, 1]. MXFP4's are powers of two of that size."""
    for offset in halves_of(format_name):
        blocks[:, offset : offset + 2] = choose().astype(np.float16).view(np.uint8)
    if format_name == "IQ1_M":
        blocks[:] = replace_scales(FORMATS[format_name], blocks, choose()[:, 0].astype(np.float16))
    if format_name == "MXFP4":
        blocks[:, :1] = np.frexp(choose())[1] + 126


def multiply_min_scales(on: On, format_name: str, tokens: int) -> Any:
    """MXFP4's least exponents: scales that float32 has as subnormal numbers, and those next to them."""
    width = width_of(format_name, 3)
    blocks = on.random.integers(0, 256, (33 * 3, FORMATS[format_name].nbytes), dtype=np.uint8)
    blocks[:, 0] = on.random.integers(0, 4, len(blocks))
    return ops.linear(on.rows(tokens, width, scale=1e30), on.pack(FORMATS[format_name], (33, width), blocks))


def raw_blocks(on: On, format_name: str, tokens: int) -> Any:
    """Every pattern of a block's small integers, with scales from subnormal halves to large ones."""
    kind = FORMATS[format_name]
    blocks = on.random.integers(0, 256, (33 * 3, kind.nbytes), dtype=np.uint8)
    scales = np.array([2.0**-24, 6e-5, 1.0, -0.5, 1000.0, 0.0])
    set_scales(format_name, blocks, lambda: scales[on.random.integers(0, len(scales), (len(blocks), 1))])
    width = width_of(format_name, 3)
    return ops.linear(on.rows(tokens, width), on.pack(kind, (33, width), blocks))


def extreme_blocks(on: On, format_name: str, tokens: int, byte: int, scale: float) -> Any:
    """Blocks of one byte alone, against activations that are all +-127: the largest sums there can be."""
    kind, width = FORMATS[format_name], width_of(format_name, 3)
    blocks = np.full((33 * 3, kind.nbytes), byte, np.uint8)
    set_scales(format_name, blocks, lambda: np.full((len(blocks), 1), scale))
    x = np.full((tokens, width), 127.0, np.float32)
    x[1::3] = -127
    x[2::3, ::2] = -127
    return ops.linear(on.tensor(x), on.pack(kind, (33, width), blocks))


def cases() -> Iterator[Case]:
    for format_name in FORMAT_NAMES:
        for out, width in shapes(format_name):
            for tokens in TOKENS:
                name, main = f"{format_name} {out}x{width} x{tokens}", tokens in MAIN and out in (33, 65)
                common = main and format_name not in ALIKE
                yield case("linear", name, linear, format_name, out, width, tokens, False, common=common)
        for tokens in TOKENS:
            yield from of_tokens(format_name, tokens)
        for tokens in MAIN:
            yield from of_values(format_name, tokens)


def of_tokens(format_name: str, tokens: int) -> Iterator[Case]:
    """Each is a kernel of its own. A bias, which no format knows of, is tried with few formats on lesser targets."""
    few, main = format_name in FEW_FORMATS, tokens in MAIN and format_name not in ALIKE
    rare, common = format_name in ALIKE or (not few and tokens not in (*MAIN, 17)), few and main
    out, width = 50, width_of(format_name, 3)
    name = f"{format_name} bias {out}x{width} x{tokens}"
    yield case("linear", name, linear, format_name, out, width, tokens, True, common=common, rare=rare)
    for outs in ((96, 33, 7), (16, 160, 16)):
        first = main and outs[0] == 96 and format_name in EACH_KIND
        name = f"{format_name} {outs} x{tokens}"
        yield case("linear_group", name, group, format_name, outs, tokens, False, common=first, rare=rare)
        name = f"{format_name} {outs} bias x{tokens}"
        yield case("linear_group", name, group, format_name, outs, tokens, True, common=common and first, rare=rare)
    for biased, words in ((False, ""), (True, " bias")):
        name = f"{format_name} (1, 50){words} x{tokens}"
        yield case(
            "linear_group", name, group, format_name, (1, 50), tokens, biased, common=False, rare=biased or not few
        )
    yield case(
        "linear_group",
        f"{format_name} one bias x{tokens}",
        partly_biased,
        format_name,
        tokens,
        common=common,
        rare=rare,
    )
    for out, blocks in ((33, 3), (1, 1), (50, 10), (160, 1)):
        width = width_of(format_name, min(blocks, 2) if FORMATS[format_name].values == 256 else blocks)
        name, first = f"{format_name} {out}x{width} x{tokens}", main and out in (33, 50) and format_name in EACH_KIND
        yield case("linear_silu_mul", name, gated, format_name, out, width, tokens, common=first, rare=rare)
    name, first = f"{format_name} gelu_tanh x{tokens}", main and format_name in EACH_KIND
    yield case("linear_activate_mul", name, gelu_gated, format_name, tokens, common=first, rare=not first)


def of_values(format_name: str, tokens: int) -> Iterator[Case]:
    few = tokens == 7 and format_name in FEW_FORMATS
    for weights, activations in ((1.0, 1e30), (1.0, 1e-30), (1e4, 1.0), (1e-4, 1e20)):
        name = f"{format_name} scales {weights:g} {activations:g} x{tokens}"
        yield case("linear", name, scaled, format_name, tokens, weights, activations, common=few)
    for peak in (1e-36, 1e-37, 1e-40, 1e-45):
        yield case(
            "linear", f"{format_name} peak {peak:g} x{tokens}", small_activations, format_name, tokens, peak, common=few
        )
    yield case("linear", f"{format_name} zero blocks x{tokens}", with_zeros, format_name, tokens, common=few)
    common = format_name not in ALIKE
    yield case("linear", f"{format_name} NaN x{tokens}", with_nan, format_name, tokens, np.nan, common=common)
    if format_name == "MXFP4":
        yield case("linear", f"{format_name} least scales x{tokens}", multiply_min_scales, format_name, tokens)
    if FORMATS[format_name].values > 1:
        yield case("linear", f"{format_name} any block x{tokens}", raw_blocks, format_name, tokens, common=common)
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            name = f"{format_name} blocks of {byte:#04x} x{tokens}"
            yield case("linear", name, extreme_blocks, format_name, tokens, byte, 1.0, common=common)
