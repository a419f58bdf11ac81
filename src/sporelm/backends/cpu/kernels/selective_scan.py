"""Mamba 1's selective scan: the state of a channel is a few numbers, each with its own decay rate.

An item is a tile of channels of one sequence, as in `recurrent_state`: it processes the sequence's rows with its part
of the state and of the rates in the L1 cache. Most of the work is one exponential for each number and row.
"""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.recurrent_state import StateShape, StateTile, softplus
from sporelm.backends.cpu.kernels.step_sequences import SEQUENCE_FIELDS, columns_per_tile


class ChannelTile(StateTile):
    """A tile of the channels of one sequence; the decay rates are copied beside the state."""

    def __init__(self, k: Builder, f: Any, shape: StateShape, item: Val, scratch: Val) -> None:
        super().__init__(k, f, shape, item, scratch)
        copy = k.at(scratch, shape.scratch(k.target))
        self.rates_home, self.rates_stride = k.at(f.decay, self.at), f.decay_stride
        self.rates = k.select(self.copied, copy, self.rates_home)
        self.step = k.select(self.copied, self.stride, self.rates_stride)

    def fetch(self) -> None:
        super().fetch()
        k = self.k
        with k.when(self.copied), k.range(self.shape.rows) as row:
            found = self.load(k.at(self.rates_home, row * self.rates_stride))
            self._put(found, k.at(self.rates, row * self.step))

    def change(self, made: Callable[[Val, list[Val], list[Val]], list[Val]]) -> None:
        """Visit each row of the state once; `made` returns new values from the offset of the row, its values and their
        rates."""
        k = self.k
        with k.range(self.shape.rows) as row:
            place = k.at(self.state, row * self.stride)
            rates = self._get(k.at(self.rates, row * self.step))
            self._put(made(row * 4, self._get(place), rates), place)


def selective_scan(target: Any, shape: StateShape) -> Kernel:
    """Run the scan. An item is a tile of the channels of a sequence."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as number:
            item = ChannelTile(k, f, shape, number, scratch)
            with k.when(item.start < item.stop):
                item.fetch()
                with k.range(item.start, item.stop) as token:
                    _row(k, f, item, token)
                item.leave()

    text = "x:p x_stride:i dt:p dt_stride:i write:p read:p size_stride:i decay:p decay_stride:i skip:p"
    text = f"{text} out:p heads:i shared:i {SEQUENCE_FIELDS}"
    room = shape.scratch(target) + 4 * columns_per_tile(target) * shape.rows
    return Kernel(f"selective_scan_{shape.name}", parse_fields(text), body, scratch=room)


def _row(k: Builder, f: Any, item: ChannelTile, token: Val) -> None:
    given = k.at(f.x, token * f.x_stride + item.at)
    x = item.load(given)
    steps = [softplus(k, dt) for dt in item.load(k.at(f.dt, token * f.dt_stride + item.at))]
    scaled, sums = [each * step for each, step in zip(x, steps, strict=True)], [k.zero(k.vf) for _ in x]
    write, read = (k.at(place, token * f.size_stride) for place in (f.write, f.read))

    def changed(at: Val, state: list[Val], rates: list[Val]) -> list[Val]:
        b, c = (k.broadcast(k.vf, place, at) for place in (write, read))
        found = []
        for s, u, step, rate, total in zip(state, scaled, steps, rates, sums, strict=True):
            found.append(k.fma(s, k.exp(step * rate), b * u))
            total.set(k.fma(c, found[-1], total.value))
        return found

    item.change(changed)
    # Load x again: keeping it would take registers from the loop.
    skip, x = item.load(k.at(f.skip, item.at)), item.load(given)
    result = [k.fma(factor, each, total.value) for factor, each, total in zip(skip, x, sums, strict=True)]
    item.store(result, k.at(f.out, token * f.x_stride + item.at))
