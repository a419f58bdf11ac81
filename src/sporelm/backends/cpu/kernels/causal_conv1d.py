"""Causal convolution of each channel over a sequence's rows."""

from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.step_sequences import (
    SEQUENCE_FIELDS,
    columns_per_tile,
    sequence_rows,
    state_address,
    vectors_per_tile,
)

PREFETCH_ROWS = 8  # rows: each row is in a page of its own, where no hardware prefetcher follows


@dataclass(frozen=True)
class ConvolutionShape:
    """The parameters that the kernel is specialised on."""

    taps: int
    bias: bool
    silu: bool

    def kernel(self, target: Any) -> Kernel:
        """Return the kernel. An item is a tile of channels of one sequence; channels after the last whole tile are
        processed one by one."""
        columns = columns_per_tile(target)

        def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
            with k.range(first, last) as item:
                tile, sequence = item % f.tiles, item // f.tiles
                start, stop, begins = sequence_rows(k, f, sequence)
                with k.when(start < stop):
                    held = state_address(k, f, sequence), begins
                    with k.ir.if_else(((tile + 1) * columns <= f.channels).raw) as (whole, rest):
                        with whole:
                            at = tile * (4 * columns)
                            places = [at + 4 * k.lanes * number for number in range(vectors_per_tile(target))]
                            self._channels(k, f, (start, stop), held, places, k.vf)
                        with rest, k.range(tile * columns, f.channels) as channel:
                            self._channels(k, f, (start, stop), held, [channel * 4], f32)

        text = (
            f"x:p out:p stride:i weight:p weight_stride:i {'bias:p ' * self.bias}channels:i tiles:i {SEQUENCE_FIELDS}"
        )
        name = f"causal_conv1d_{self.taps}{'_bias' * self.bias}{'_silu' * self.silu}"
        return Kernel(name, parse_fields(text), body)

    def _channels(
        self, k: Builder, f: Any, rows: tuple[Val, Val], held: tuple[Val, Val], places: list[Val], kind: Any
    ) -> None:
        """Convolve vectors of channels, or one channel, over all rows. The previous rows stay in registers."""
        state, begins = held
        nothing, before = k.const(kind, 0), range(self.taps - 1)

        def state_row(tap: int, place: Val) -> Val:
            return place + f.row_bytes * tap

        window = [
            [k.var(k.select(begins, nothing, k.load(kind, state, state_row(tap, place)))) for place in places]
            for tap in before
        ]
        with k.range(*rows) as token:
            row, out = k.at(f.x, token * f.stride), k.at(f.out, token * f.stride)
            k.prefetch(k.at(row, f.stride * PREFETCH_ROWS), places[0])
            for number, place in enumerate(places):
                given = [*(vars[number].value for vars in window), k.load(kind, row, place)]
                total = given[0] * k.load(kind, f.weight, place)
                for tap in range(1, self.taps):
                    total = k.fma(given[tap], k.load(kind, f.weight, place + f.weight_stride * tap), total)
                if self.bias:
                    total = total + k.load(kind, f.bias, place)
                k.store(total / (k.exp(-total) + 1.0) if self.silu else total, out, place)
                for tap in before:
                    window[tap][number].set(given[tap + 1])
        for tap in before:
            for var, place in zip(window[tap], places, strict=True):
                k.store(var.value, state, state_row(tap, place))
