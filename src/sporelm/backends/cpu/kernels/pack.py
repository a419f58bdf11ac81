"""Weights from a file's blocks to panels. An item is one panel."""

from typing import Any

from sporelm.backends.cpu.formats import Panels
from sporelm.backends.cpu.jit import Builder, Kernel, Val
from sporelm.backends.cpu.jit.kernel import fields


def pack(target: Any, kind: Panels) -> Kernel:
    """`source` holds `rows` rows of `row_bytes` each; rows past the last become zeros."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as panel:
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
    return Kernel(name, fields("source:p row_bytes:i rows:i width:i groups:i out:p panel_bytes:i"), body)
