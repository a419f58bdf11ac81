"""The layer with norms after its residual sums, and the identity in place of a norm."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import Layer
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class PostNormLayer(Layer):
    """norm(x + attention(x)), then norm(x + mlp(x)) (Vaswani et al. 2017), with the norms of `Layer`."""

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        assert self.attention_norm is not None
        assert self.mlp is not None
        assert self.mlp_norm is not None
        x = self.attention_norm(ops.add(x, self.attention(x, step, weights, *caches)), weights)
        return self.mlp_norm(ops.add(x, self.mlp(x, weights)), weights)


class IdentityNorm:
    """The identity, in place of a norm."""

    def params(self) -> list[Param]:
        return []

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return x
