"""Products with a matrix for each head. An item is a few panels of one head, which stay cached while all tokens use
them."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, PanelOperands, multiply_panels, tile_sizes


def linear_heads(target: Any, shape: LinearShape, *, one: bool, out: int) -> Kernel:
    """Multiply `one` token, or any number.

    `head_stride` is from one head's columns of x to the next; the `out` results of a head follow the previous head's.
    """
    together, largest = target.tiles.few_of(shape.format)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        tiles = (f.panels + (together - 1)) // together
        aheads = [f.panel_bytes]  # of the next panel: a head's matrix is small, and the next head's follows it
        with k.range(first, last) as item:
            head, panel = item // tiles, item % tiles * together
            numbers = [k.min(panel + n, f.panels - 1) for n in range(together)]  # the last is repeated
            panels = [k.at(f.weight, head * f.head_bytes + number * f.panel_bytes) for number in numbers]
            outs = [k.at(f.out, head * (4 * out) + number * (4 * k.lanes)) for number in numbers]
            places = [PanelOperands([at], to, f.out_stride, None) for at, to in zip(panels, outs, strict=True)]

            def tile(first: Val, count: int) -> None:
                tokens = [first + n for n in range(count)]
                rows = [k.at(f.x, token * f.x_stride + head * f.head_stride) for token in tokens]
                sums = multiply_panels(k, shape, places, rows, f.width, aheads)
                for token, totals in zip(tokens, sums, strict=True):
                    for to, number, total in zip(outs, numbers, totals, strict=True):
                        _store_panel(k, total.value, k.at(to, token * f.out_stride), out, number, scratch)

            if one:
                tile(k.index(0), 1)
                return
            token = k.var(k.index(0))
            for size in tile_sizes(largest, k.target):
                with k.loop_while(lambda: token.value + size <= f.tokens):  # noqa: B023 - asked for at once
                    tile(token.value, size)
                    token.set(token.value + size)

    text = "x:p x_stride:i head_stride:i width:i weight:p head_bytes:i panel_bytes:i panels:i"
    text += " out:p out_stride:i tokens:c"
    name = f"linear_heads_{shape.name}_{'one' if one else 'few'}_{out}"
    return Kernel(name, parse_fields(text), body, scratch=4 * target.lanes)


def _store_panel(k: Builder, found: Val, at: Val, out: int, panel: Val, scratch: Val) -> None:
    """Store a panel's results, except those past the head's last one, where the next head's results are."""
    if out % k.lanes == 0:
        k.store(found, at)
        return
    k.store(found, scratch)
    with k.range(k.min(k.index(out) - panel * k.lanes, k.lanes)) as lane:
        k.store(k.load(f32, scratch, lane * 4), at, lane * 4)
