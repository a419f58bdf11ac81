"""A mixture with experts that are selected before attention, so that they can be loaded meanwhile (SmallThinker)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import Layer, Mixer, RowBlock
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.inputs import StepInputs


class PreRoutedMixture(Mixture):
    """The router reads the layer's input; gates have ReLU, so that many of the products are zero."""

    def run_experts(self, x: Any, shares: Any, ids: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        """Return the weighted sum of the selected experts' outputs: [tokens, width]."""
        (gate,) = self.gates
        inner = ops.activate_mul(gate(x, weights, ids), self.up(x, weights, ids), kind="relu")
        return ops.combine_experts(self.down(inner, weights, ids), shares)


class PreRoutedLayer(Layer):
    """x + attention(norm(x)), then x + experts(norm(x)); the router reads x before attention."""

    def __init__(
        self, attention_norm: RowBlock, attention: Mixer, mlp_norm: RowBlock, mixture: PreRoutedMixture
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mixture)
        self.pre_attention_norm, self.pre_mlp_norm, self.mixture = attention_norm, mlp_norm, mixture

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        shares, ids = self.mixture.route(x, weights)
        x = ops.add(x, self.attention(self.pre_attention_norm(x, weights), step, weights, *caches))
        return ops.add(x, self.mixture.run_experts(self.pre_mlp_norm(x, weights), shares, ids, weights))
