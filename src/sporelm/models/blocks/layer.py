"""One layer of a decoder with the norms in front (pre-norm)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.attention import Attention, Paged
from sporelm.models.blocks.gated_mlp import GatedMLP
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.inputs import StepInputs
from sporelm.weights.names import Param


class Layer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, attention_norm: RMSNorm, attention: Attention, mlp_norm: RMSNorm, mlp: GatedMLP) -> None:
        self.attention_norm, self.attention = attention_norm, attention
        self.mlp_norm, self.mlp = mlp_norm, mlp

    def params(self) -> list[Param]:
        return [*self.attention_norm.params(), *self.attention.params(), *self.mlp_norm.params(), *self.mlp.params()]

    def memory(self) -> Paged:
        return self.attention.memory

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        x = ops.add(x, self.attention(self.attention_norm(x, weights), step, weights, cache))
        return ops.add(x, self.mlp(self.mlp_norm(x, weights), weights))
