"""Products with weights: the descriptor that all step buckets share, and the one-token and few-token kernels.

An item is one panel of the outputs (with `gated`, one panel of gate and one of up). Weights stream past once: each
panel stays in the nearest cache while all tokens use it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.formats.activation_records import WIDE_RECORD
from sporelm.backends.cpu.jit import Builder, Kernel, KernelField, Val, Var
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.activation import emit_activation
from sporelm.backends.cpu.kernels.panel_products import PanelSums, Prefetch, dot_panels, widen_row
from sporelm.backends.cpu.targets.tiles import registers


class LinearShape(NamedTuple):
    """The parameters that a linear kernel is specialised on."""

    format: Any  # Panels
    segments: int = 1  # weights that share one x
    bias: bool = False
    gate: str = ""  # two weights, one output: this function of the first (`ops.activate`) * the second

    @property
    def gated(self) -> bool:
        return bool(self.gate)

    @property
    def name(self) -> str:
        marks = [mark for mark, there in (("bias", self.bias), ("gated", self.gated)) if there]
        gate = [self.gate] if self.gate not in ("", "silu") else []
        return "_".join([self.format.name.lower(), str(self.segments), *marks, *gate])

    def fields(self) -> tuple[KernelField, ...]:
        """Return the fields: x and its row stride; per weight: panels, outputs, number of panels, row stride, bias."""
        text = "x:p x_stride:i width:i panel_bytes:i tokens:c"
        for s in range(self.segments):
            text += f" weight{s}:p out{s}:p panels{s}:i out_stride{s}:i" + (f" bias{s}:p" if self.bias else "")
        return parse_fields(text)


class PanelOperands(NamedTuple):
    """The panels of an item, and the address of its outputs."""

    panels: list[Val]  # addresses of the weights' panels
    out: Val  # address of the outputs of token 0
    stride: Val
    bias: Val | None


def locate_panel(k: Builder, shape: LinearShape, f: Any, item: Val) -> PanelOperands:
    """Return the panel(s) of an item, searching the segments."""
    wide = 4 * k.lanes

    def segment(s: int, index: Val) -> PanelOperands:
        bias = k.at(getattr(f, f"bias{s}"), index * wide) if shape.bias else None
        panel = k.at(getattr(f, f"weight{s}"), index * f.panel_bytes)
        return PanelOperands([panel], k.at(getattr(f, f"out{s}"), index * wide), getattr(f, f"out_stride{s}"), bias)

    place = segment(0, item)
    if shape.gated:
        return place._replace(panels=[place.panels[0], k.at(f.weight1, item * f.panel_bytes)])
    start = f.panels0
    for s in range(1, shape.segments):
        other, past = segment(s, item - start), item >= start
        bias = k.select(past, other.bias, place.bias) if other.bias is not None and place.bias is not None else None
        panel = k.select(past, other.panels[0], place.panels[0])
        place = PanelOperands(
            [panel], k.select(past, other.out, place.out), k.select(past, other.stride, place.stride), bias
        )
        start = start + getattr(f, f"panels{s}")
    return place


def finish_output(k: Builder, shape: LinearShape, sums: list[Val], bias: Val | None) -> Val:
    """Return the output vector of one token: gated or biased."""
    if shape.gated:
        return emit_activation(k, sums[0], shape.gate) * sums[1]
    return sums[0] if bias is None else sums[0] + k.load(k.vf, bias)


def linear_one(target: Any, shape: LinearShape) -> Kernel:
    """Multiply one token."""
    together, _ = target.tiles.few_of(shape.format)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last, together) as item:
            places = locate_panels(k, shape, f, item, last, together)
            aheads = prefetch_distances(k, shape, f, places)
            near = limit_prefetch(target, shape, aheads)
            sums = multiply_panels(k, shape, places, [f.x], f.width, near)
            store_results(k, shape, places, sums, [k.index(0)])

    return Kernel(f"linear_one_{shape.name}", shape.fields(), body)


def linear_few(target: Any, shape: LinearShape, width: int = 0) -> Kernel:
    """Multiply any number of tokens, in register tiles; fastest for a few. The next panel is prefetched.

    Rows of formats that are multiplied in 16 bits are widened in scratch memory first, once for all panels; its size
    depends on the rows' `width`, the code does not.
    """
    together, largest = target.tiles.few_of(shape.format)
    is_wide = shape.format.name in target.tiles.wide

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        align_spills(k, shape)
        x, stride = f.x, f.x_stride
        if is_wide:
            records = (f.width + (shape.format.k_step - 1)) // shape.format.k_step * shape.format.blocks
            x, stride = scratch, records * WIDE_RECORD
            with k.range(f.tokens) as number:
                widen_row(k, k.at(f.x, number * f.x_stride), records, k.at(x, number * stride))
        with k.range(first, last, together) as item:
            places = locate_panels(k, shape, f, item, last, together)
            token, aheads = k.var(k.index(0)), prefetch_distances(k, shape, f, places)
            for size in tile_sizes(largest, target):
                with k.loop_while(partial(_remain, f, token, size)):
                    tokens = [token.value + t for t in range(size)]
                    rows = [k.at(x, number * stride) for number in tokens]
                    sums = multiply_panels(k, shape, places, rows, f.width, aheads, is_wide=is_wide)
                    store_results(k, shape, places, sums, tokens)
                    token.set(token.value + size)

    tokens = target.tiles.few_tokens_of(shape.format)
    scratch = tokens * shape.format.groups(width) * shape.format.blocks * WIDE_RECORD if is_wide else 0
    return Kernel(f"linear_few_{shape.name}", shape.fields(), body, scratch=scratch)


def align_spills(k: Builder, shape: LinearShape) -> None:
    """Align the stack where a target's integer products of several tokens spill."""
    if k.target.aligns_spills and isinstance(shape.format, IntegerPanels):
        k.align_stack()


def _remain(f: Any, token: Var, size: int) -> Val:
    """Return whether `size` tokens remain."""
    return token.value + size <= f.tokens


def tile_sizes(largest: int, target: Any) -> list[int]:
    """Return token counts of tiles, the largest first, that add up to any number.

    With 16 registers tiles are long code for little gain, and take long to compile: there are fewer of them.
    """
    sizes = (8, 6, 4, 2, 1) if registers(target) > 16 else (4, 2, 1)
    return sorted({largest, *(size for size in sizes if size < largest)}, reverse=True)


def prefetch_distances(k: Builder, shape: LinearShape, f: Any, places: list[PanelOperands]) -> list[Val]:
    """Return the distance from each weight's panels to the panels read next.

    Gate's panels are followed by up's, the last weight's by the first one's of the next item.
    """
    step, panels = f.panel_bytes * len(places), places[0].panels
    if not shape.gated:
        return [step]
    apart = k.distance(*panels)
    return [apart, step - apart]


def limit_prefetch(target: Any, shape: LinearShape, distances: list[Val]) -> list[Prefetch]:
    """Return the prefetch of each panel for the one-token kernel, given the distances to the panels read next."""
    return [Prefetch(distance, target.tiles.prefetch_bytes_of(shape.format)) for distance in distances]


def locate_panels(k: Builder, shape: LinearShape, f: Any, item: Val, last: Val, count: int) -> list[PanelOperands]:
    """Return the panels of `count` items; past the last one it is repeated, and written twice with equal values."""
    return [locate_panel(k, shape, f, item if n == 0 else k.min(item + n, last - 1)) for n in range(count)]


def multiply_panels(
    k: Builder,
    shape: LinearShape,
    places: list[PanelOperands],
    rows: list[Val],
    width: Val,
    aheads: Sequence[Val | Prefetch],
    *,
    is_wide: bool = False,
) -> PanelSums:
    """Return [token][panel, or gate's and up's of each panel]. `aheads` gives what each of these parts prefetches."""
    # gate first, then up: both at once would halve the tokens that fit the registers
    parts = [
        dot_panels(k, shape.format, [p.panels[n] for p in places], rows, width, at, is_wide=is_wide)
        for n, at in enumerate(aheads)
    ]
    if not shape.gated:
        return parts[0]
    return [[*gate, *up] for gate, up in zip(*parts, strict=True)]


def store_results(
    k: Builder, shape: LinearShape, places: list[PanelOperands], sums: PanelSums, rows: list[Val]
) -> None:
    """Store results in the rows of these numbers."""
    for number, row in zip(rows, sums, strict=True):
        for n, place in enumerate(places):
            result = finish_output(k, shape, [total.value for total in row[n :: len(places)]], place.bias)
            k.store(result, k.at(place.out, number * place.stride))
