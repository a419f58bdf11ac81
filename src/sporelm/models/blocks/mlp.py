"""The feed-forward block without a gate."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear
from sporelm.models.config import ModelConfig
from sporelm.models.params import Columns, Param, Rows


class MLP:
    """down(activation(up(x))); `part` is a suffix of the names of its weights, `ffn` its width if not the model's."""

    def __init__(self, name: str, config: ModelConfig, activation: str, *, part: str = "", ffn: int = 0) -> None:
        width, ffn, bias = config.width, ffn or config.ffn, config.mlp_bias
        self.up = Linear(f"{name}.ffn_up{part}", ffn, width, bias=bias, split=Rows())
        self.down = Linear(f"{name}.ffn_down{part}", width, ffn, bias=bias, split=Columns())
        self.activation = activation

    def params(self) -> list[Param]:
        return [*self.up.params(), *self.down.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        return self.down(ops.activate(self.up(x, weights), kind=self.activation), weights)
