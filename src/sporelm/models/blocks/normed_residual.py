"""The layer that adds the outputs of its blocks to normed rows (MiniMax 2025)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import Layer, Mixer, RowBlock
from sporelm.models.blocks.linear import scale_rows
from sporelm.models.inputs import StepInputs


class NormedResidualLayer(Layer):
    """a r + attention(r) with r = norm(x), then b s + mlp(s), where s is the norm of that sum; `residual_scales` are a
    and b."""

    def __init__(
        self,
        attention_norm: RowBlock,
        attention: Mixer,
        mlp_norm: RowBlock,
        mlp: RowBlock,
        *,
        residual_scales: tuple[float, float],
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mlp)
        self.residual_scales = residual_scales

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        assert self.attention_norm is not None
        assert self.mlp_norm is not None
        assert self.mlp is not None
        x = self.attention_norm(x, weights)
        x = ops.add(scale_rows(x, self.residual_scales[0]), self.attention(x, step, weights, *caches))
        x = self.mlp_norm(x, weights)
        return ops.add(scale_rows(x, self.residual_scales[1]), self.mlp(x, weights))
