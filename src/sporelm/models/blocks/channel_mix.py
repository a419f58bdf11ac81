"""RWKV's feed-forward block, which mixes each row with the previous one."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mlp import MLP
from sporelm.models.blocks.token_shift import previous_row_state, shift_tokens
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class ChannelMix:
    """down(relu(up(r)) ** 2), where r is the row mixed with the previous one (RWKV-7, Peng et al. 2025)."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.mlp, self.mix = MLP(name, config, "relu_squared"), Param(f"{name}.ffn_mix.weight", (config.width,))
        self.memory = previous_row_state(config.width)

    def params(self) -> list[Param]:
        return [*self.mlp.params(), self.mix]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        delta = shift_tokens(x, step, weights, cache[0])
        return self.mlp(ops.mix_rows(x, delta, (weights[self.mix.name],)), weights)


class GatedChannelMix:
    """sigmoid(gate(g)) * down(relu(up(r)) ** 2), where r and g are the row mixed with the previous one (RWKV-6)."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        self.mlp, self.gate = MLP(name, config, "relu_squared"), Linear(f"{name}.ffn_gate", config.width, config.width)
        self.mixes = [Param(f"{name}.ffn_mix{part}.weight", (config.width,)) for part in ("", "_gate")]
        self.memory = previous_row_state(config.width)

    def params(self) -> list[Param]:
        return [*self.mlp.params(), *self.gate.params(), *self.mixes]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        delta = shift_tokens(x, step, weights, cache[0])
        row, gate = ops.mix_rows(x, delta, tuple(weights[mix.name] for mix in self.mixes))
        return ops.activate_mul(self.gate(gate, weights), self.mlp(row, weights), kind="sigmoid")
