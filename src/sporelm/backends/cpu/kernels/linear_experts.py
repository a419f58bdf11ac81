"""Products with the matrices of experts, and the weighted sum of their results.

A token's row and one of its experts form a pair; pairs are numbered token by token. One token multiplies its experts'
panels directly. For several tokens, pairs with one expert form a group (kernels/expert_routing.py sorts them), so that
each expert's weights stream past once for all of them. Rows are read and written in place, by the pairs' numbers.
"""

from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, KernelField, Val, Var, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.expert_routing import COUNT, EXPERT, GROUP_BYTES, START, valid_expert
from sporelm.backends.cpu.kernels.many_token_linear import TOKENS_PER_BLOCK, LinearTile
from sporelm.backends.cpu.kernels.quantized_linear import (
    LinearShape,
    PanelOperands,
    align_spills,
    limit_prefetch,
    multiply_panels,
    store_results,
    tile_sizes,
)

VALUES_PER_PASS = 64  # values of a row that `combine` adds at a time: rows are padded to whole multiples


def _fields(shape: LinearShape, more: str) -> tuple[KernelField, ...]:
    """Return the fields: x and its row stride; weights, their sizes, outputs; the bias, [experts, out], and its row
    stride."""
    text = "x:p x_stride:i width:i panel_bytes:i expert_bytes:i experts:i panels:i weight0:p out:p out_stride:i"
    text += (" weight1:p" if shape.gated else "") + (" bias:p bias_stride:i" if shape.bias else "")
    return parse_fields(f"{text} {more}")


def _locate(k: Builder, shape: LinearShape, f: Any, expert: Val, panel: Val) -> PanelOperands:
    """Return a panel of an expert, and the address of its outputs in row 0."""
    at, wide = expert * f.expert_bytes + panel * f.panel_bytes, 4 * k.lanes
    weights = [f.weight0, f.weight1] if shape.gated else [f.weight0]
    bias = k.at(f.bias, expert * f.bias_stride + panel * wide) if shape.bias else None
    return PanelOperands([k.at(weight, at) for weight in weights], k.at(f.out, panel * wide), f.out_stride, bias)


def _locate_all(
    k: Builder, shape: LinearShape, f: Any, expert: Val, first: Val, last: Val, count: int
) -> list[PanelOperands]:
    """Return `count` panels from `first` on; past the last, it is repeated and written twice with equal values."""
    panels = [first if n == 0 else k.min(first + n, last - 1) for n in range(count)]
    return [_locate(k, shape, f, expert, panel) for panel in panels]


def zero_rows(target: Any) -> Kernel:
    """Write zeros to the rows of pairs without an expert. An item is one pair."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as pair, k.when(k.load(i32, f.ids, pair * 4) < 0):
            row = k.at(f.out, pair * f.out_stride)
            with k.range(0, f.out_stride, 4 * k.lanes) as at:
                k.store(k.const(k.vf, 0), row, at)

    return Kernel("zero_expert_rows", parse_fields("ids:p out:p out_stride:i"), body)


def experts_one(target: Any, shape: LinearShape, *, is_part: bool = False) -> Kernel:
    """Multiply one token. An item is a few panels of one of its experts; `slot_stride` is from one expert's row of x to
    the next, 0 if they share it. Slots of a part of the experts may have none, -1: they are left as they are."""
    together, _ = target.tiles.few_of(shape.format)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        tiles = (f.panels + (together - 1)) // together
        with k.range(first, last) as item:
            slot, panel = item // tiles, item % tiles * together
            with k.when(k.load(i32, f.ids, slot * 4) >= 0) if is_part else nullcontext():
                multiply(k, f, item, slot, panel, tiles)

    def multiply(k: Builder, f: Any, item: Val, slot: Val, panel: Val, tiles: Val) -> None:
        places = _locate_all(k, shape, f, valid_expert(k, f, slot), panel, f.panels, together)
        following = k.min(item + 1, f.slots * tiles - 1)
        expert = valid_expert(k, f, following // tiles)
        later = _locate(k, shape, f, expert, following % tiles * together).panels[0]
        row = k.at(f.x, slot * f.slot_stride)
        aheads = _prefetch_distances(k, places[0], later)
        sums = multiply_panels(k, shape, places, [row], f.width, limit_prefetch(target, shape, aheads))
        store_results(k, shape, places, sums, [slot])

    name = f"experts_one_{shape.name}{'_part' * is_part}"
    return Kernel(name, _fields(shape, "ids:p slots:i slot_stride:i"), body)


def _prefetch_distances(k: Builder, place: PanelOperands, later: Val) -> list[Val]:
    """Return the distance from each weight's panel to the panel read next, of the last one to `later`."""
    return [k.distance(here, there) for here, there in pairwise([*place.panels, later])]


def experts_few(target: Any, shape: LinearShape) -> Kernel:
    """Multiply groups of few pairs. An item is a few panels of one group's expert."""
    together, _ = target.tiles.few_of(shape.format)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        align_spills(k, shape)
        tiles = (f.panels + (together - 1)) // together
        with k.range(first, last) as item:
            expert, pairs, count = _read_group(k, f, item // tiles)
            panel = item % tiles * together
            later = _first_panel(k, shape, f, item + 1, tiles, together)
            _multiply_few(k, shape, f, _locate_all(k, shape, f, expert, panel, f.panels, together), later, pairs, count)

    return Kernel(f"experts_few_{shape.name}", _fields(shape, "groups:p pairs:p each:i"), body)


def tiles_of(shape: LinearShape, target: Any, panels: int, *, many: bool) -> int:
    """Return the items of a group, or of an expert."""
    tile = LinearTile(shape, target).panels // (1 + shape.gated) if many else target.tiles.few_of(shape.format)[0]
    return -(-panels // tile)


def experts_many(target: Any, shape: LinearShape) -> Kernel:
    """Multiply groups of any number of pairs, each in the faster way. An item is a tile of panels."""
    tile, few_tokens = _ExpertTile(shape, target), target.tiles.few_tokens_of(shape.format)
    together, _ = target.tiles.few_of(shape.format)
    group_panels = tile.panels // (1 + shape.gated)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        align_spills(k, shape)
        tiles = (f.panels + (group_panels - 1)) // group_panels
        with k.range(first, last) as item:
            expert, pairs, count = _read_group(k, f, item // tiles)
            begin = item % tiles * group_panels
            end = k.min(begin + group_panels, f.panels)
            with k.ir.if_else((count <= few_tokens).raw) as (is_few, is_many):
                with is_few, k.range(begin, end, together) as panel:
                    here = _locate(k, shape, f, expert, panel + together).panels[0]
                    beyond = _first_panel(k, shape, f, item + 1, tiles, group_panels)
                    later = k.select(panel + together < end, here, beyond)
                    _multiply_few(
                        k, shape, f, _locate_all(k, shape, f, expert, panel, end, together), later, pairs, count
                    )
                with is_many:
                    tile.run(k, f, expert, begin, pairs, count, scratch)

    kernel_fields = _fields(shape, "groups:p pairs:p each:i")
    return Kernel(f"experts_many_{shape.name}", kernel_fields, body, scratch=tile.scratch)


def _read_group(k: Builder, f: Any, number: Val) -> tuple[Val, Val, Val]:
    """Return a group's expert, the address of its pairs' numbers, and their count."""
    group = k.at(f.groups, number * GROUP_BYTES)
    return k.load(i64, group, EXPERT), k.at(f.pairs, k.load(i64, group, START) * 4), k.load(i64, group, COUNT)


def _first_panel(k: Builder, shape: LinearShape, f: Any, item: Val, tiles: Val, panels: int) -> Val:
    """Return the address of the first panel of an item, for prefetching; past the last item any address."""
    expert = k.load(i64, f.groups, item // tiles * GROUP_BYTES + EXPERT)
    return _locate(k, shape, f, expert, item % tiles * panels).panels[0]


def _multiply_few(
    k: Builder, shape: LinearShape, f: Any, places: list[PanelOperands], later: Val, pairs: Val, count: Val
) -> None:
    """Multiply all pairs of a group by some panels, in tiles that fit the registers."""
    _, largest = k.target.tiles.few_of(shape.format)
    aheads = _prefetch_distances(k, places[0], later)
    done = k.var(k.index(0))
    for size in tile_sizes(largest, k.target):
        with k.loop_while(partial(_remaining, done, size, count)):
            numbers = [_pair_at(k, pairs, done.value + t) for t in range(size)]
            rows = [_row_address(k, f, number) for number in numbers]
            store_results(k, shape, places, multiply_panels(k, shape, places, rows, f.width, aheads), numbers)
            done.set(done.value + size)


def _remaining(done: Var, size: int, count: Val) -> Val:
    return done.value + size <= count


def _pair_at(k: Builder, pairs: Val, index: Val) -> Val:
    return k.load(i32, pairs, index * 4).sext(i64)


def _row_address(k: Builder, f: Any, pair: Val) -> Val:
    """Return the row of x of a pair: `each` pairs share one."""
    return k.at(f.x, pair // f.each * f.x_stride)


class _ExpertTile(LinearTile):
    """A tile whose rows are scattered: the addresses of rows and outputs are in scratch memory."""

    def __init__(self, shape: LinearShape, target: Any) -> None:
        super().__init__(shape, target)
        self._rows = self.scratch
        self._outs = self._rows + 8 * (TOKENS_PER_BLOCK + self.tokens)
        self.scratch = self._outs + 8 * (TOKENS_PER_BLOCK + self.tokens)

    def run(self, k: Builder, f: Any, expert: Val, begin: Val, pairs: Val, count: Val, scratch: Val) -> None:
        """Multiply all pairs of a group by the tile's panels, block by block."""
        group = self.panels // (1 + self.shape.gated)
        found = [_locate(k, self.shape, f, expert, k.min(begin + p, f.panels - 1)) for p in range(group)]
        addresses = [place.panels[n] for n in range(1 + self.shape.gated) for place in found]
        place: dict[str, Any] = {"addresses": addresses, "index": begin, "panels": f.panels, "group": group}
        place |= {"rows": k.at(scratch, self._rows), "outs": k.at(scratch, self._outs)}
        if self.shape.bias:
            place["bias"] = k.at(f.bias, expert * f.bias_stride)
        sums = k.at(scratch, self.unpacked)
        with k.range(0, count, TOKENS_PER_BLOCK) as start:
            length = k.min(count - start, TOKENS_PER_BLOCK)
            with k.range(length + (self.tokens - 1)) as index:
                pair = _pair_at(k, pairs, start + k.min(index, length - 1))
                k.store(_row_address(k, f, pair), place["rows"], index * 8, align=8)
                k.store(k.at(f.out, pair * f.out_stride), place["outs"], index * 8, align=8)
            with k.range((length + (self.tokens - 1)) * self.panels) as line:
                k.store(k.const(k.vf, 0), sums, line * self.vector, align=self.vector)
            self.multiply(k, f, place, scratch, k.index(0), length)
            with k.range(length) as index:
                self.write(k, f, place, k.at(sums, index * self.row), index)

    def rows(self, k: Builder, f: Any, place: dict[str, Any], token: Val, offset: Val) -> list[Val]:
        return [self.row_of(k, f, place, token + t, offset) for t in range(self.tokens)]

    def row_of(self, k: Builder, f: Any, place: dict[str, Any], token: Val, offset: Val) -> Val:
        return k.at(k.load_pointer(place["rows"], token * 8), offset)

    def out_row(self, k: Builder, place: dict[str, Any], token: Val) -> Val:
        return k.load_pointer(place["outs"], token * 8)


def combine_experts(target: Any, *, bias: bool = False) -> Kernel:
    """Sum each token's `slots` rows of y with their weights, in order, then add an optional bias. An item is one
    token."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        with k.range(first, last) as token:
            y, out = k.at(f.y, token * f.slots * f.y_stride), k.at(f.out, token * f.out_stride)
            weights = k.at(f.weights, token * f.weights_stride)
            with k.range(f.blocks) as block:
                start = block * (4 * VALUES_PER_PASS)
                factor = k.broadcast(k.vf, weights)
                parts = range(0, 4 * VALUES_PER_PASS, wide)
                sums = [k.var(factor * k.load(k.vf, y, start + at)) for at in parts]
                with k.range(1, f.slots) as slot:
                    factor = k.broadcast(k.vf, weights, slot * 4)
                    row = k.at(y, slot * f.y_stride + start)
                    for total, at in zip(sums, parts, strict=True):
                        total.set(k.fma(factor, k.load(k.vf, row, at), total.value))
                for total, at in zip(sums, parts, strict=True):
                    value = total.value + k.load(k.vf, f.bias, start + at) if bias else total.value
                    k.store(value, out, start + at)

    text = "y:p y_stride:i slots:i weights:p weights_stride:i out:p out_stride:i blocks:i" + " bias:p" * bias
    return Kernel(f"combine_experts{'_bias' * bias}", parse_fields(text), body)
