"""A transformer layer that several places of a model share, each with low-rank matrices of its own (Zyphra 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sporelm import ops
from sporelm.models.blocks.attention import Attention
from sporelm.models.blocks.block_memory import Memory, list_memories
from sporelm.models.blocks.layer import Layer, Mixer
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.mamba2_mixer import SpaceHeads
from sporelm.models.blocks.rms_norm import RMSNorm
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param


@dataclass(frozen=True)
class SharedBlocks(SpaceHeads):
    """Numbers of state spaces and of the blocks between them; the layers of `attention` go through one first."""

    blocks: int = 1  # that take turns
    rank: int = 0  # of the matrices that a place has of its own
    adapts: bool = False  # queries, keys and values have such too


class OwnPart:
    """What a place adds to the products that it shares: high(low(x)), where `low` may serve several."""

    def __init__(self, name: str, number: int, rank: int, *shared: Linear) -> None:
        self.low = Linear(f"{name}_a{number}", rank, shared[0].width)
        self.highs = [Linear(f"{each.name}_b{number}", each.out, rank, split=each.split) for each in shared]
        self.shared = shared

    def params(self) -> list[Param]:
        return [param for linear in (self.low, *self.highs) for param in linear.params()]

    def __call__(self, x: Any, weights: Mapping[str, Any]) -> list[Any]:  # x [tokens, width]
        low, made = self.low(x, weights), apply_linears(x, weights, *self.shared)
        return [ops.add(each, high(low, weights)) for each, high in zip(made, self.highs, strict=True)]


class OwnLinear(Linear):
    """A shared product, and what a place adds to it."""

    def __init__(self, shared: Linear, number: int, rank: int) -> None:
        super().__init__(shared.name, shared.out, shared.width, bias=shared.bias, split=shared.split)
        self.own = OwnPart(shared.name, number, rank, Linear(shared.name, shared.out, shared.width, split=shared.split))

    def of_ordered(self, x: Any, weights: Mapping[str, Any]) -> Any:
        own = self.own.highs[0](self.own.low(x, weights), weights)
        return ops.add(super().of_ordered(x, weights), own)


class SharedTransformer:
    """mlp(norm(attention(norm(x beside the embedding)))), without sums; its `number`th place.

    owned   this place is the first: its parameters are those of all, besides its own
    """

    def __init__(self, name: str, config: ModelConfig, number: int, *, owned: bool) -> None:
        numbers, width, wide = config.own, config.width, 2 * config.width
        self.owned, self.norm = owned, RMSNorm(f"{name}.attn_norm", wide, config.eps)
        self.attention = Attention(name, replace(config, width=wide))
        self.attention.o = Linear(f"{name}.attn_o", width, self.attention.o.width, split=self.attention.o.split)
        self.own: list[OwnPart] = []
        if numbers.adapts:
            parts = [
                OwnLinear(each, number, numbers.rank) for each in (self.attention.q, self.attention.k, self.attention.v)
            ]
            self.attention.q, self.attention.k, self.attention.v = parts
            self.own = [part.own for part in parts]
        self.mlp_norm = RMSNorm(f"{name}.ffn_norm", width, config.eps)
        gate, up = (Linear(f"{name}.ffn_{part}", config.ffn, width, bias=config.mlp_bias) for part in ("gate", "up"))
        self.down = Linear(f"{name}.ffn_down", width, config.ffn, bias=config.mlp_bias)
        self.gates = OwnPart(f"{name}.ffn", number, numbers.rank, gate, up)

    def params(self) -> list[Param]:
        own = [param for part in (*self.own, self.gates) for param in part.params()]
        linears = [param for linear in (*self.gates.shared, self.down) for param in linear.params()]
        whole = [*self.norm.params(), *self.attention.params(), *self.mlp_norm.params(), *linears]
        return [*(whole if self.owned else ()), *own]

    def __call__(self, x: Any, first: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:
        both = self.norm(ops.join_columns(x, first), weights)
        mixed = self.mlp_norm(self.attention(both, step, weights, cache), weights)
        gate, up = self.gates(mixed, weights)
        return self.down(ops.activate_mul(gate, up, kind="gelu"), weights)


class SharedThenSpace(Layer):
    """x + space(norm(x + linear(shared(x, first)))): what a layer gets from the block is read once, and not kept."""

    def __init__(self, shared: SharedTransformer, linear: Linear, norm: RMSNorm, space: Mixer) -> None:
        super().__init__(norm, space)
        self.shared, self.linear = shared, linear

    def memory(self) -> tuple[Memory, ...]:
        return self.shared.attention.memory, *list_memories(self.attention.memory)

    def params(self) -> list[Param]:
        return [*self.shared.params(), *self.linear.params(), *super().params()]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], *caches: Any) -> Any:
        """x [tokens, width]; in front of its two caches are the rows of the embedding, [tokens, width]."""
        first, pages, state = caches
        made = self.linear(self.shared(x, first, step, weights, pages), weights)
        assert self.attention_norm is not None
        return ops.add(x, self.attention(self.attention_norm(ops.add(x, made), weights), step, weights, state))
