"""RWKV-6's time mix: linear attention whose channels fade as each token says, in the place of attention.

Peng et al. 2024, "Eagle and Finch".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.token_shift import LowRank, shift_tokens
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

MIXES = "wkvrg"  # what rows are mixed for: decays, keys, values, reading, the gate


@dataclass(frozen=True)
class FinchNumbers:
    """Numbers of a model of such mixes; the record of its family (`own`)."""

    mix: int = 0  # the rank of what makes mixes, and of what makes decays
    decay: int = 0
    eps: float | None = None  # of the norm of heads
    halved: int = 0  # rows are halved after so many layers, and what is added to them is stored so; 0: never


class TokenMixes:
    """Rows mixed with the ones before them, by what depends on the row: one result for each of `MIXES`."""

    def __init__(self, name: str, width: int, rank: int) -> None:
        self.first = Param(f"{name}.mix_x.weight", (width,))
        self.mixes = [Param(f"{name}.mix_{part}.weight", (width,)) for part in MIXES]
        self.more = [LowRank(f"{name}.mix_{part}_more", width, rank, width, bias=False) for part in MIXES]

    def params(self) -> list[Param]:
        return [self.first, *self.mixes, *(param for part in self.more for param in part.params())]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], row: Any) -> dict[str, Any]:
        """Of x [tokens, width], and what a block keeps of the row before."""
        delta = shift_tokens(x, step, weights, row)
        few = apply_linears(
            ops.mix_rows(x, delta, (weights[self.first.name],)), weights, *(each.down for each in self.more)
        )
        more = tuple(each.up(ops.softcap(part, cap=1.0), weights) for each, part in zip(self.more, few, strict=True))
        mixes = tuple(weights[mix.name] for mix in self.mixes)
        return dict(zip(MIXES, ops.mix_rows(x, delta, mixes, more), strict=True))


class TimeMix6:
    """o(norm(wkv(...)) * silu(gate))."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        own: FinchNumbers = config.own
        width, self.dim, self.eps = config.width, config.head_dim, own.eps
        self.mixes = TokenMixes(name, width, own.mix)
        self.r, self.k, self.v, self.g, self.o = (Linear(f"{name}.wkv_{part}", width, width) for part in "rkvgo")
        self.decay = LowRank(f"{name}.wkv_decay", width, own.decay, width, "tanh")
        self.bonus = Param(f"{name}.wkv.bonus", (config.heads, config.head_dim), plain=True)
        self.norm = [Param(f"{name}.wkv_norm.{kind}", (width,)) for kind in ("weight", "bias")]
        self.memory = State(((1, width), (width, config.head_dim)))

    def params(self) -> list[Param]:
        matrices = [param for part in (self.r, self.k, self.v, self.g, self.o) for param in part.params()]
        return [*self.mixes.params(), *self.decay.params(), *matrices, self.bonus, *self.norm]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        row, state = cache
        mixed = self.mixes(x, step, weights, row)
        parts = {"r": self.r, "k": self.k, "v": self.v, "g": self.g}
        r, k, v, gate = (part(mixed[name], weights) for name, part in parts.items())
        whose = step.starts, step.lengths, step.states
        made = ops.wkv6(r, self.decay(mixed["w"], weights), k, v, weights[self.bonus.name], state, *whose)
        norm = (weights[param.name] for param in self.norm)
        return self.o(ops.silu_mul(gate, ops.group_norm(made, *norm, group=self.dim, eps=self.eps)), weights)


class GroupedTimeMix:
    """o(linear attention(...) * sigmoid(gate)), keys and values shared by groups of heads (QRWKV6, Recursal 2024)."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        own: FinchNumbers = config.own
        width, self.heads, self.kv_heads = config.width, config.heads, config.kv_heads
        self.mixes, few, bias = (
            TokenMixes(name, width, own.mix),
            config.kv_heads * config.head_dim,
            config.attention_bias,
        )
        outs = (("q", width), ("k", few), ("v", few))
        self.qkv = [Linear(f"{name}.attn_{part}", out, width, bias=bias) for part, out in outs]
        self.g, self.o = (Linear(f"{name}.attn_{part}", width, width) for part in ("gate", "o"))
        self.decay = LowRank(f"{name}.wkv_decay", width, own.decay, width, "tanh")
        self.memory = State(((1, width), (width, config.head_dim)))

    def params(self) -> list[Param]:
        matrices = [param for part in (*self.qkv, self.g, self.o) for param in part.params()]
        return [*self.mixes.params(), *self.decay.params(), *matrices]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        row, state = cache
        mixed = self.mixes(x, step, weights, row)
        q, k, v = (part(mixed[name], weights) for part, name in zip(self.qkv, "rkv", strict=True))
        whose = step.starts, step.lengths, step.states
        given, whole = (q, self.decay(mixed["w"], weights), k, v, state), {"heads": self.heads}
        made = ops.gated_linear_attention(*given, *whose, **whole, key_heads=self.kv_heads)
        return self.o(ops.activate_mul(self.g(mixed["g"], weights), made, kind="sigmoid"), weights)
