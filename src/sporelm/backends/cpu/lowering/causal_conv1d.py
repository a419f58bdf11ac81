"""Lowering of the causal convolution."""

from sporelm import ops
from sporelm.backends.cpu.kernels.causal_conv1d import ConvolutionShape
from sporelm.backends.cpu.kernels.step_sequences import columns_per_tile
from sporelm.backends.cpu.lowering.emitter import Emitter, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.sequence_entries import emit_sequences
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.causal_conv1d)
def _lower_causal_conv1d(emitter: Emitter, call: Call) -> None:
    x, weight, bias, *held = call.args
    channels, target = require_fixed(spec_of(x).shape[1]), emitter.context.target
    fields = {
        "x": emitter.address(x),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(x),
        "channels": channels,
    }
    fields |= {
        "weight": emitter.address(weight),
        "weight_stride": row_stride(weight),
        "tiles": -(-channels // columns_per_tile(target)),
    }
    if bias is not None:
        fields["bias"] = emitter.address(bias)
    taps, silu = require_fixed(spec_of(weight).shape[0]), bool(call.options.get("silu", True))
    kernel = ConvolutionShape(taps, bias is not None, silu).kernel(target)
    emit_sequences(emitter, kernel, fields, held, fields["tiles"])
