"""The feed-forward block with a learned activation function (Huang, Schlag 2024)."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.mlp import MLP
from sporelm.models.config import ModelConfig
from sporelm.models.params import Param

# The learned numbers of a layer and their shapes; a parameter has those of all layers.
NUMBERS: dict[str, tuple[int, ...]] = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}


def xielu_params(layers: int) -> list[Param]:
    """Return the parameters of all layers."""
    return [Param(f"xielu.{part}", (layers, *shape), plain=True) for part, shape in NUMBERS.items()]


class XieluMLP(MLP):
    """down(xielu(up(x)))."""

    def __init__(self, index: int, config: ModelConfig) -> None:
        super().__init__(f"layers.{index}", config, "xielu")
        self.index = index

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        numbers = [weights[f"xielu.{part}"] for part in NUMBERS]
        return self.down(ops.xielu(self.up(x, weights), *numbers, layer=self.index), weights)
