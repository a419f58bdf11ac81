"""Embedding lookup."""

from typing import Any

from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.row_selection import _pad


def embedding(target: Any, kind: Panels, fills: bool = False, is_part: bool = False) -> Kernel:
    """Look up embeddings. An item is one token; its row is read from the panels. An id past the table gives NaN, or the
    first row with `fills`; no memory out of bounds is read. In a part of a table, which has the rows of ids from
    `first` on, an id outside the part gives zeros."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as token:
            given = k.load(i32, f.ids, token * 4).sext(i64) - (f.first if is_part else 0)
            inside = k.select(given >= 0, k.const(i64, 1), k.const(i64, 0)) & k.select(
                given < f.vocab, k.const(i64, 1), k.const(i64, 0)
            )
            row, out = given * inside, k.at(f.out, token * f.out_stride)
            panel, lane = k.at(f.table, row // k.lanes * f.panel_bytes), row % k.lanes
            with k.range(f.groups) as group:
                at = group * (4 * kind.k_step)
                for number, value in enumerate(kind.row_values(k, panel, lane, group)):
                    k.store(value, out, at + 4 * k.lanes * number)
            _pad(k, out, f.width, f.padded)
            if not fills:
                with k.when(inside.equals(0)), k.range(f.width) as column:
                    k.store(k.const(f32, 0.0 if is_part else float("nan")), out, column * 4)

    name = f"embedding_{kind.name.lower()}{'_fills' * fills}{'_part' * is_part}"
    text = "ids:p table:p panel_bytes:i out:p out_stride:i groups:i width:i padded:i vocab:i" + " first:i" * is_part
    return Kernel(name, parse_fields(text), body)
