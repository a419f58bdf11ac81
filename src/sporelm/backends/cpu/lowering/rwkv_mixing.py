"""Lowering of RWKV's token shift."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.kernels import rwkv_mixing
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.mix_rows, rowwise=True)
def _lower_mix_rows(emitter: Emitter, call: Call) -> None:
    x, delta, mixes, more = (*call.args, ())[:4]
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": emitter.address(x), "delta": emitter.address(delta), "stride": row_stride(x)}
    fields["vectors"] = emitter.vectors(require_fixed(width))
    for name, values in (("mix", mixes), ("more", more), ("out", call.results)):
        fields |= {f"{name}{number}": emitter.address(value) for number, value in enumerate(values)}
    kernel = rwkv_mixing.mix_rows(emitter.context.target, len(mixes), bool(more))
    emitter.emit(kernel, fields, extent_cell(tokens), grain=emitter.row_grain(tokens))


@lowers(ops.blend, rowwise=True)
def _lower_blend(emitter: Emitter, call: Call) -> None:
    tokens, width = spec_of(call.args[0]).shape
    fields: dict[str, Any] = dict(zip(("x", "y", "gate"), map(emitter.address, call.args), strict=True))
    fields |= {
        "out": emitter.address(call.results[0]),
        "stride": row_stride(call.args[0]),
        "vectors": emitter.vectors(require_fixed(width)),
    }
    emitter.emit(
        rwkv_mixing.blend(emitter.context.target), fields, extent_cell(tokens), grain=emitter.row_grain(tokens)
    )
