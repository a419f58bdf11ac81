"""Two layers with experts in parallel (Meituan 2025, "LongCat-Flash"); some experts return their input."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import BlockMemory, list_memories
from sporelm.models.blocks.layer import Layer, RowBlock
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.mixture import Mixture
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class ShortcutLayer(Layer):
    """The first layer, then the second. The experts read the input of the first dense block, and are added last, so
    that they can be computed in parallel with everything between."""

    def __init__(self, first: Layer, second: Layer, experts: RowBlock) -> None:
        super().__init__(first.attention_norm, first.attention, first.mlp_norm, first.mlp)
        self.second, self.experts = second, experts

    def params(self) -> list[Param]:
        return [*super().params(), *self.second.params(), *self.experts.params()]

    def memory(self) -> BlockMemory:
        return *list_memories(self.attention.memory), *list_memories(self.second.memory())

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:  # x [tokens, width]
        assert self.attention_norm is not None
        assert self.mlp_norm is not None
        assert self.mlp is not None
        count = len(list_memories(self.attention.memory))
        x = ops.add(x, self.attention(self.attention_norm(x, weights), step, weights, *caches[:count]))
        read = self.mlp_norm(x, weights)
        shortcut = self.experts(read, weights)
        x = ops.add(x, self.mlp(read, weights))
        return ops.add(self.second(x, step, weights, *caches[count:]), shortcut)


class ZeroExpertMixture(Mixture):
    """A mixture with experts that return their input, the last `num_zero_experts`."""

    def __init__(self, name: str, config: ModelConfig, num_zero_experts: int) -> None:
        super().__init__(name, config)
        count = self.experts.count + num_zero_experts
        self.router = Linear(f"{name}.ffn_gate_inp", count, config.width)
        self.num_zero_experts = num_zero_experts
        self.choice = Param(f"{name}.ffn_choice.bias", (count,))

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> Any:  # x [tokens, width]
        if not self.num_zero_experts:
            return super().__call__(x, weights)
        shares, ids, rest = ops.split_zero_experts(*self.route(x, weights), experts=self.experts.count)
        mixed = ops.combine_experts(self.down(self._inner(x, weights, ids), weights, ids), shares)
        return ops.add(mixed, ops.combine_experts(x, rest))
