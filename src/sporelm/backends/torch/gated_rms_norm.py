"""Gated norms through plain torch."""

from torch import Tensor
from torch.nn.functional import silu

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.gated_rms_norm)
def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group: int, first: str, activation: str = "silu"
) -> Tensor:
    opened = silu(gate) if activation == "silu" else gate.sigmoid()
    runs = (x * opened if first == "gate" else x).unflatten(1, (-1, group))
    mean_square = runs.square().mean(dim=-1, keepdim=True)
    scaled = (runs * (mean_square + eps).rsqrt() * weight).flatten(1)
    return scaled if first == "gate" else scaled * opened
