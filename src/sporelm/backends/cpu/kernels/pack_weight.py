"""Packing of weights from a file's blocks to panels. An item is one panel."""

from typing import Any

from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields


def pack_weight(target: Any, kind: Panels) -> Kernel:
    """Pack `rows` rows of `row_bytes` each from `source`; rows past the last become zeros."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as panel:
            if kind.row_block:
                _pack_rows(k, f, kind, panel, scratch)
                return
            rows, present = [], []
            for lane in range(k.lanes):
                row = panel * k.lanes + lane
                exists = row < f.rows
                present.append(exists)
                rows.append(k.at(f.source, k.select(exists, row, k.index(0)) * f.row_bytes))
            target_panel = k.at(f.out, panel * f.panel_bytes)
            with k.range(f.groups) as group:
                kind.pack_group(k, rows, present, group, k.at(target_panel, group * kind.group_bytes), f.width)

    name = f"pack_{kind.name.lower()}"
    text = "source:p row_bytes:i rows:i width:i groups:i out:p panel_bytes:i"
    return Kernel(name, parse_fields(text), body, scratch=kind.k_step if kind.row_block else 0)


def _pack_rows(k: Builder, f: Any, kind: Panels, panel: Val, scratch: Val) -> None:
    """Pack a panel row by row, for blocks that need more than moves."""
    with k.range(k.lanes) as lane:
        row = panel * k.lanes + lane
        present = row < f.rows
        source = k.at(f.source, k.select(present, row, k.index(0)) * f.row_bytes)
        target = k.at(f.out, panel * f.panel_bytes)
        with k.range(f.groups) as group:
            block = k.at(source, group * kind.row_block)
            kind.pack_row(k, block, present, lane, k.at(target, group * kind.group_bytes), scratch)
