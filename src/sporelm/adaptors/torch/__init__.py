"""Our number formats and ops as torch custom ops, `torch.ops.sporelm.*`, on the CPU and on every other torch device.

Importing it imports torch, which needs `sporelm[torch]`. On the CPU our compiled kernels compute the ops, in place on
torch's memory; on other devices plain torch does. Each op has a fake implementation: `torch.compile` and `torch.export`
trace it. The ops are for inference: they have no derivatives.
"""

from sporelm.errors import BackendError, install_command

try:
    import torch  # noqa: F401
except ImportError as error:
    raise BackendError(f"torch does not load ({error}); install it: {install_command('torch')}") from error

from sporelm.adaptors.torch.op_library import (
    attention,
    dequantize,
    experts,
    gated_mlp,
    linear,
    pack,
    quantize,
    rms_norm,
    rotary,
    silu_and_mul,
)
from sporelm.adaptors.torch.packed_linear import PackedLinear
from sporelm.adaptors.torch.thread_choice import get_num_threads, set_num_threads

__all__ = [
    "PackedLinear",
    "attention",
    "dequantize",
    "experts",
    "gated_mlp",
    "get_num_threads",
    "linear",
    "pack",
    "quantize",
    "rms_norm",
    "rotary",
    "set_num_threads",
    "silu_and_mul",
]
