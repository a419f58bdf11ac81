"""The mixture whose experts are known before attention, so that they can be fetched meanwhile (SmallThinker)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.layer import Layer, Mixer, RowBlock
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.inputs import StepInputs


class PreRoutedMixture(Mixture):
    """The router reads what the layer does; gates are ReLU's, so that much of what they multiply is zero."""

    def chosen(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        """Weights and ids of each token's experts."""
        return self._routed(x, weights)

    def of_chosen(self, x: Any, chosen: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        (shares, ids), (gate,) = chosen, self.gates
        inner = ops.activate_mul(gate(x, weights, ids), self.up(x, weights, ids), kind="relu")
        return ops.combine_experts(self.down(inner, weights, ids), shares)


class PreRoutedLayer(Layer):
    """x + attention(norm(x)), then x + experts(norm(x)), which the first x has chosen."""

    def __init__(
        self, attention_norm: RowBlock, attention: Mixer, mlp_norm: RowBlock, mixture: PreRoutedMixture
    ) -> None:
        super().__init__(attention_norm, attention, mlp_norm, mixture)
        self.normed, self.mlp_normed, self.mixture = attention_norm, mlp_norm, mixture

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        chosen = self.mixture.chosen(x, weights)
        x = ops.add(x, self.attention(self.normed(x, weights), step, weights, *caches))
        return ops.add(x, self.mixture.of_chosen(self.mlp_normed(x, weights), chosen, weights))
