"""Conversion of rows to blocks of a number format, and the count of values that are not finite. An item is one row."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.narrow_floats import to_bf16
from sporelm.backends.cpu.quantizers import QUANTIZERS, Quantizer
from sporelm.backends.cpu.quantizers.lane_columns import SCRATCH_BYTES, BlockAddresses, Column, QuantizerWorkspace

ROWS_PER_PASS = 1024  # rows whose mean squares are kept at a time
FIELDS = "values:p stride:i blocks:i out:p"


def quantize_blocks(target: Any, name: str, weighted: bool) -> Kernel:
    """Round rows to `blocks` blocks each; with `weighted` each column has an importance."""
    if name in NARROW_FLOATS:
        return _quantize_numbers(name)
    kind = QUANTIZERS[name]
    by_row = weighted and kind.by_row

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last, ROWS_PER_PASS) as begin:
            end = k.min(begin + ROWS_PER_PASS, last)
            means = k.at(scratch, SCRATCH_BYTES)
            if by_row:
                _mean_squares(k, f, begin, end, scratch, means)
            _quantize_rows(k, f, begin, end, scratch, kind, weighted, means if by_row else None)

    text = FIELDS + " importance:p width:i" * weighted
    ending = "_weighted" * weighted
    return Kernel(
        f"quantize_blocks_{name.lower()}{ending}", parse_fields(text), body, SCRATCH_BYTES + 4 * ROWS_PER_PASS
    )


def _quantize_rows(
    k: Builder, f: Any, begin: Val, end: Val, scratch: Val, kind: Quantizer, weighted: bool, means: Val | None
) -> None:
    """Round rows begin to end - 1, `lanes` blocks at a time, which may belong to several rows."""
    row, block = k.var(begin), k.var(k.index(0))
    total = (end - begin) * f.blocks
    out = k.at(f.out, begin * f.blocks * kind.nbytes)
    with k.range(0, total, k.lanes) as at:
        count = k.min(total - at, k.lanes)
        work = QuantizerWorkspace(k, scratch)
        places, others = BlockAddresses(work), BlockAddresses(work)
        mean = work.floats(1)
        with k.range(k.lanes) as lane:
            column = block.value * (4 * kind.values)
            places.set(lane, k.at(f.values, row.value * f.stride + column))
            if weighted:
                others.set(lane, k.at(f.importance, column))
            if means is not None:
                k.store(k.load(f32, means, (row.value - begin) * 4), mean.base, lane * 4)
            with k.when(lane + 1 < count):  # lanes past the last block repeat it
                block.set(block.value + 1)
                with k.when(block.value.equals(f.blocks)):
                    block.set(k.index(0))
                    row.set(row.value + 1)
        x = work.floats(kind.values)
        places.gather(x)
        weights = None
        if weighted:
            weights = work.floats(kind.values)
            others.gather(weights)
            if means is not None:
                _weigh(k, x, weights, mean[0])
        kind.quantize(work, x, weights)
        work.write(k.at(out, at * kind.nbytes), count, kind.nbytes)
        block.set(block.value + 1)
        with k.when(block.value.equals(f.blocks)):
            block.set(k.index(0))
            row.set(row.value + 1)


def _weigh(k: Builder, x: Column, weights: Column, mean: Val) -> None:
    """Turn importance into weights, as `quant.block_rounding.weigh_by_row` does."""
    with k.range(x.count) as at:
        value = x[at]
        weights[at] = weights[at] * k.sqrt(mean + value * value)


def _mean_squares(k: Builder, f: Any, begin: Val, end: Val, scratch: Val, means: Val) -> None:
    """Compute the mean square of each row, one row per lane, summed from the first value to the last."""
    with k.range(begin, end, k.lanes) as at:
        work = QuantizerWorkspace(k, scratch)
        places, tile = BlockAddresses(work), work.floats(32)
        with k.range(k.lanes) as lane:
            places.set(lane, k.at(f.values, k.min(at + lane, end - 1) * f.stride))
        total = k.zero(k.vf)
        with k.range(0, f.width, 32):
            places.gather(tile)
            places.advance(128)
            for number in range(32):
                value = tile[number]
                total.set(total.value + value * value)
        mean = total.value / k.splat(f.width.trunc(i32).to_float())
        with k.range(k.min(end - at, k.lanes)) as lane:
            k.store(mean.lane(lane.trunc(i32)), means, (at + lane - begin) * 4)


def _quantize_numbers(name: str) -> Kernel:
    """Round rows of formats of single numbers: `blocks` numbers per row, without scratch or lanes of blocks."""
    round_numbers = NARROW_FLOATS[name]

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as row:
            source, out = k.at(f.values, row * f.stride), k.at(f.out, row * f.blocks * 2)
            whole = f.blocks // k.lanes * k.lanes
            with k.range(0, whole, k.lanes) as at:
                k.store(round_numbers(k, k.load(k.vf, source, at * 4)), out, at * 2)
            with k.range(whole, f.blocks) as at:
                k.store(round_numbers(k, k.load(f32, source, at * 4)), out, at * 2)

    return Kernel(f"quantize_blocks_{name.lower()}", parse_fields(FIELDS), body)


NARROW_FLOATS: dict[str, Callable[[Builder, Val], Val]] = {
    "F16": lambda k, numbers: k.target.to_half(k, numbers),
    "BF16": to_bf16,
}


def count_nonfinite(target: Any) -> Kernel:
    """Count values that are not finite, among `width` numbers per row."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        ones, zeros = k.const(k.vi, 1), k.const(k.vi, 0)
        with k.range(first, last) as row:
            source, found = k.at(f.values, row * f.stride), k.var(zeros)
            whole = f.width // k.lanes * k.lanes
            with k.range(0, whole, k.lanes) as at:
                finite = k.fabs(k.load(k.vf, source, at * 4)) < float("inf")
                found.set(found.value + k.select(finite, zeros, ones))
            total = k.var(k.fold(found.value, lambda a, b: a + b))
            with k.range(whole, f.width) as at:
                finite = k.fabs(k.load(f32, source, at * 4)) < float("inf")
                total.set(total.value + k.select(finite, k.const(i32, 0), k.const(i32, 1)))
            k.store(total.value, f.out, row * 4)

    return Kernel("count_nonfinite", parse_fields("values:p stride:i width:i out:p"), body)
