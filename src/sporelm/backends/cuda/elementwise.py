"""Gates element by element. `add` is one launch of torch's already."""

from torch import Tensor

from sporelm import ops
from sporelm.backends.cuda.activation import launch_activation
from sporelm.backends.cuda.op_kernels import launches


@launches(ops.silu_mul)
def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, rounded once."""
    return launch_activation(gate, up, "silu")


@launches(ops.clamped_swiglu)
def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float, limit: float) -> Tensor:
    """Return (up + 1) * gate * sigmoid(alpha * gate) of limited arguments."""
    return launch_activation(gate, up, "clamped_swiglu", alpha, limit)
