"""Lowering of elementwise ops: one kernel over rows, whose item is one row."""

from typing import Any

from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_extents, row_stride
from sporelm.ops import Call


def emit_elementwise(emitter: Emitter, call: Call, kernel: Kernel) -> None:
    """Emit a kernel that treats each element by itself. The call's numeric options are fields of the kernel."""
    x = call.args[0]
    tokens, rows_per_token, width = row_extents(x)
    fields: dict[str, Any] = dict(zip("xy", map(emitter.address, call.args), strict=False))
    fields |= {"out": emitter.address(call.results[0]), "stride": row_stride(x), "vectors": emitter.vectors(width)}
    fields |= {name: float(value) for name, value in call.options.items() if not isinstance(value, str)}
    grain = emitter.row_grain(tokens, rows_per_token)
    emitter.emit(kernel, fields, extent_cell(tokens), factor=rows_per_token, grain=grain)
