"""Blocks of any bytes at all, as a damaged file may hold them: the CPU gives what the reference gives, and stays up."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from close import assert_close
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.evals.conformance.conformance_case import EACH_KIND, FEW_FORMATS, FORMAT_NAMES, On, width_of
from sporelm.evals.conformance.quantized_linear import halves_of
from sporelm.quant import FORMATS, dequantize_tensor, quantize_tensor
from sporelm.quant.activations import quantize_int8

OUT, TOKENS = 67, (1, 7, 33)
ROUNDED = {"int8/32": 32, "int8/256": 256}
FLOATS = [format_name for format_name in FORMAT_NAMES if FORMATS[format_name].values == 1]
BLOCKS = [format_name for format_name in FORMAT_NAMES if FORMATS[format_name].activation in ROUNDED]
BITS = {"NaN": 0x7E01, "infinite": 0x7C00, "minus infinite": 0xFC00, "zero": 0x0000, "subnormal": 0x0001}


def anything(on: On, format_name: str) -> np.ndarray:
    """Random bytes: about one scale in 32 is NaN or infinite."""
    return on.random.integers(0, 256, (OUT * 3, FORMATS[format_name].nbytes), dtype=np.uint8)


def with_scales(bits: int) -> Callable[[On, str], np.ndarray]:
    """Random bytes with plain scales, but one block of every fifth row has these bits in all of its scales."""

    def make(on: On, format_name: str) -> np.ndarray:
        blocks = anything(on, format_name)
        for offset in halves_of(format_name):
            blocks[:, offset : offset + 2] = np.frombuffer(np.float16(0.25).tobytes(), np.uint8)
            blocks[1::15, offset : offset + 2] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)
        return blocks

    return make


def ones(on: On, format_name: str) -> np.ndarray:
    """Every bit set: every scale is NaN."""
    return np.full((OUT * 3, FORMATS[format_name].nbytes), 0xFF, np.uint8)


KINDS = {"any bytes": anything, "all ones": ones} | {f"{name} scales": with_scales(bits) for name, bits in BITS.items()}


COMMON = ("any bytes", "NaN scales")


def is_common(target: str, format_name: str, kind: str) -> bool:
    """Return whether the default run has it: on the best target every format and every kind, on the others a sample."""
    if target == TARGETS[0]:
        return kind in COMMON or format_name in EACH_KIND
    return kind in COMMON and format_name in (EACH_KIND if target == "avx2" else FEW_FORMATS)


ON_TARGETS = [
    pytest.param(
        target,
        format_name,
        kind,
        id=f"{target}-{format_name}-{kind}",
        marks=[] if is_common(target, format_name, kind) else [pytest.mark.all],
    )
    for target in TARGETS
    for format_name in BLOCKS
    for kind in KINDS
]
on_targets = pytest.mark.parametrize(("opened_cpu", "format_name", "kind"), ON_TARGETS, indirect=["opened_cpu"])


def finite_alike(found: np.ndarray, expected: np.ndarray, magnitude: np.ndarray) -> None:
    """NaN where a weight of the row is NaN; else neither is finite, or both are and differ by no more than rounding.

    Whether infinities of both signs meet, which is NaN, depends on how a sum is cut; no loader lets them in.
    """
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
    there = np.isfinite(expected)
    assert (np.abs(found - expected)[there] <= 1e-5 * magnitude[there] + 1e-30).all()


def values_of(format_name: str, blocks: np.ndarray) -> np.ndarray:
    return dequantize_tensor(FORMATS[format_name], blocks, (OUT, width_of(format_name, 3)))


def activations(format_name: str, x: np.ndarray) -> np.ndarray:
    """x as the format's products see it."""
    group = ROUNDED[FORMATS[format_name].activation]
    q, scales = quantize_int8(x, group)
    return (q.reshape(*scales.shape, group) * scales[:, :, None]).reshape(len(x), -1)


def largest_parts(format_name: str, blocks: np.ndarray) -> np.ndarray:
    """For each weight the largest value that its block could have: what rounding in a kernel is relative to."""
    values = np.abs(values_of(format_name, blocks)).reshape(OUT, -1, FORMATS[format_name].values)
    parts = values.max(axis=2, keepdims=True)
    return np.broadcast_to(parts, values.shape).reshape(OUT, -1)


@on_targets
def test_products_with_any_blocks_are_the_reference_s(cpu: Any, format_name: str, kind: str) -> None:
    on = On(cpu, f"{format_name} {kind}")
    blocks = KINDS[kind](on, format_name)
    if (
        format_name == "MXFP4"
    ):  # with greater exponents sums, and from 253 on values, leave float32; loaders refuse those
        blocks[:, 0] = np.minimum(blocks[:, 0], 200)
    weight = on.pack(FORMATS[format_name], (OUT, width_of(format_name, 3)), blocks)
    with np.errstate(invalid="ignore"):  # a NaN that signals is one all the same
        values = values_of(format_name, blocks).astype(np.float64)
    for tokens in TOKENS:
        x = on.values(tokens, width_of(format_name, 3))
        found = ops.linear(on.tensor(x), weight).numpy()
        with np.errstate(invalid="ignore", over="ignore"):
            seen = activations(format_name, x).astype(np.float64)
            expected = seen @ values.T
            magnitude = np.abs(seen) @ largest_parts(format_name, blocks).astype(np.float64).T
            expected[~np.isfinite(expected.astype(np.float32))] = np.nan
        finite_alike(found, expected, magnitude)
        lost = np.isnan(values).any(axis=1) & ~np.isinf(values).any(axis=1)
        only_nan = lost & np.array([not infinite_scale(format_name, blocks, row) for row in range(OUT)])
        assert np.isnan(found[:, only_nan]).all(), "a NaN in a file must show"


def infinite_scale(format_name: str, blocks: np.ndarray, row: int) -> bool:
    """Whether a block of the row has an infinite scale, which times 0 is NaN too."""
    mine = blocks.reshape(OUT, -1, FORMATS[format_name].nbytes)[row]
    return any(np.isinf(mine[:, at : at + 2].copy().view(np.float16)).any() for at in halves_of(format_name))


@on_targets
def test_rows_of_any_blocks_are_the_reference_s(cpu: Any, format_name: str, kind: str) -> None:
    """Looked up, not multiplied: the same float32, NaN and infinity at the same places."""
    on = On(cpu, f"{format_name} {kind}")
    blocks = KINDS[kind](on, format_name)
    table = on.pack(FORMATS[format_name], (OUT, width_of(format_name, 3)), blocks)
    found = ops.embedding(on.ints(range(OUT)), table).numpy()
    assert np.array_equal(found, values_of(format_name, blocks), equal_nan=True)


@pytest.mark.parametrize("format_name", FLOATS)
def test_nan_and_infinity_in_a_row_of_floats_stay_there(cpu: Any, format_name: str) -> None:
    on = On(cpu, format_name)
    matrix = on.values(OUT, 96)
    matrix[1::9, 50], matrix[2::9, 7], matrix[3::9, 95] = np.nan, np.inf, -np.inf
    weight = on.pack(FORMATS[format_name], matrix.shape, quantize_tensor(FORMATS[format_name], matrix))
    held = dequantize_tensor(FORMATS[format_name], quantize_tensor(FORMATS[format_name], matrix), matrix.shape)
    for tokens in TOKENS:
        x = on.values(tokens, 96)
        expected = x.astype(np.float64) @ np.where(np.isfinite(held), held, 0).T.astype(np.float64)
        expected[:, 1::9], expected[:, 2::9], expected[:, 3::9] = np.nan, x[:, 7:8] * np.inf, -x[:, 95:96] * np.inf
        assert_close(ops.linear(on.tensor(x), weight).numpy(), expected, "f32")
    rows = ops.embedding(on.ints(range(OUT)), weight).numpy()
    assert np.array_equal(rows, held, equal_nan=True)


@pytest.mark.parametrize("format_name", FLOATS)
def test_every_pattern_of_bits_is_looked_up_as_it_is(cpu: Any, format_name: str) -> None:
    """All halves, and random floats: NaN stays NaN, the rest keeps its bits."""
    on = On(cpu, format_name)
    nbytes = FORMATS[format_name].nbytes
    blocks = np.arange(65536, dtype=np.uint32) * (65537 if nbytes == 4 else 1)
    blocks = blocks.astype(f"<u{nbytes}").view(np.uint8).reshape(-1, nbytes)
    table = on.pack(FORMATS[format_name], (256, 256), blocks)
    found, held = (
        ops.embedding(on.ints(range(256)), table).numpy(),
        dequantize_tensor(FORMATS[format_name], blocks, (256, 256)),
    )
    there = ~np.isnan(held)
    assert np.isnan(found[~there]).all()
    assert np.array_equal(found[there].view(np.uint32), held[there].view(np.uint32))
