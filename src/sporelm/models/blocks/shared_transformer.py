"""A transformer layer that a model applies in several places, each with its own low-rank matrices (Zyphra 2024)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sporelm import ops
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.block_memory import Memory, list_memories
from sporelm.models.blocks.layer import Layer, Mixer
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


class LoraPart:
    """Shared projections, each plus a low-rank one of this place: high(low(x)).

    One `low` may serve several projections.
    """

    def __init__(self, name: str, number: int, rank: int, *shared: Linear) -> None:
        self.low = Linear(f"{name}_a{number}", rank, shared[0].width)
        self.highs = [Linear(f"{each.name}_b{number}", each.out, rank, split=each.split) for each in shared]
        self.shared = shared

    def params(self) -> list[Param]:
        return [param for linear in (self.low, *self.highs) for param in linear.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> list[Any]:  # x [tokens, width]
        low, rows = self.low(x, weights), apply_linears(x, weights, *self.shared)
        return [ops.add(each, high(low, weights)) for each, high in zip(rows, self.highs, strict=True)]


class LoraLinear(Linear):
    """A shared projection plus the low-rank one of this place."""

    def __init__(self, shared: Linear, number: int, rank: int) -> None:
        super().__init__(shared.name, shared.out, shared.width, bias=shared.bias, split=shared.split)
        linear = Linear(shared.name, shared.out, shared.width, split=shared.split)
        self.lora = LoraPart(shared.name, number, rank, linear)

    def of_ordered(self, x: Any, weights: Mapping[str, Any]) -> Any:
        added = self.lora.highs[0](self.lora.low(x, weights), weights)
        return ops.add(super().of_ordered(x, weights), added)


class SharedTransformer:
    """mlp(norm(attention(norm(x beside the embedding)))), without residual sums, in the place of this number.

    rank                    of the low-rank matrices of each place
    is_first                its parameters include the shared ones
    has_attention_adapters  queries, keys and values have low-rank matrices, too, not only the feed-forward block
    """

    def __init__(
        self, name: str, config: ModelConfig, number: int, rank: int, *, is_first: bool, has_attention_adapters: bool
    ) -> None:
        width, wide = config.width, 2 * config.width
        self.is_first, self.norm = is_first, RMSNorm(f"{name}.attn_norm", wide, config.eps)
        self.attention = Attention(name, replace(config, width=wide))
        self.attention.o = Linear(f"{name}.attn_o", width, self.attention.o.width, split=self.attention.o.split)
        self.lora: list[LoraPart] = []
        if has_attention_adapters:
            attention = self.attention
            adapted = [LoraLinear(each, number, rank) for each in (attention.q, attention.k, attention.v)]
            attention.q, attention.k, attention.v = adapted
            self.lora = [each.lora for each in adapted]
        self.mlp_norm = RMSNorm(f"{name}.ffn_norm", width, config.eps)
        gate, up = (Linear(f"{name}.ffn_{part}", config.ffn, width, bias=config.mlp_bias) for part in ("gate", "up"))
        self.down = Linear(f"{name}.ffn_down", width, config.ffn, bias=config.mlp_bias)
        self.gates = LoraPart(f"{name}.ffn", number, rank, gate, up)

    def params(self) -> list[Param]:
        own = [param for part in (*self.lora, self.gates) for param in part.params()]
        linears = [param for linear in (*self.gates.shared, self.down) for param in linear.params()]
        shared = [*self.norm.params(), *self.attention.params(), *self.mlp_norm.params(), *linears]
        return [*(shared if self.is_first else ()), *own]

    def __call__(self, x: Any, first: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:
        both = self.norm(ops.join_columns(x, first), weights)
        mixed = self.mlp_norm(self.attention(both, step, weights, cache), weights)
        gate, up = self.gates(mixed, weights)
        return self.down(ops.activate_mul(gate, up, kind="gelu"), weights)


class SharedThenMamba(Layer):
    """x + mamba(norm(x + linear(shared(x, first)))): the output of the shared block is not added to the residual
    stream."""

    def __init__(self, shared: SharedTransformer, linear: Linear, norm: RMSNorm, mamba: Mixer) -> None:
        super().__init__(norm, mamba)
        self.shared, self.linear = shared, linear

    def memory(self) -> tuple[Memory, ...]:
        return self.shared.attention.memory, *list_memories(self.attention.memory)

    def params(self) -> list[Param]:
        return [*self.shared.params(), *self.linear.params(), *super().params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:
        """`caches` are the rows of the embedding, [tokens, width], and the two caches of the layer."""
        first, pages, state = caches
        added = self.linear(self.shared(x, first, step, weights, pages), weights)
        assert self.attention_norm is not None
        return ops.add(x, self.attention(self.attention_norm(ops.add(x, added), weights), step, weights, state))
