"""RWKV-6's time mix: linear attention with decays that each token computes, in place of attention.

Peng et al. 2024, "Eagle and Finch".
"""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear, apply_linears
from sporelm.models.blocks.token_shift import LowRankProjection, shift_tokens
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

MIXES = "wkvrg"  # rows are mixed for decays, keys, values, receptance, the gate


class TokenMixes:
    """Rows mixed with the previous ones, by shares that depend on the row: one result for each of `MIXES`."""

    def __init__(self, name: str, width: int, rank: int) -> None:
        self.first = Param(f"{name}.mix_x.weight", (width,))
        self.mixes = [Param(f"{name}.mix_{part}.weight", (width,)) for part in MIXES]
        self.loras = [LowRankProjection(f"{name}.mix_{part}_more", width, rank, width, bias=False) for part in MIXES]

    def params(self) -> list[Param]:
        return [self.first, *self.mixes, *(param for lora in self.loras for param in lora.params())]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], row: Any) -> dict[str, Any]:
        """Return the mixes of x [tokens, width]; `row` is the state of the previous row."""
        delta = shift_tokens(x, step, weights, row)
        mixed = ops.mix_rows(x, delta, (weights[self.first.name],))
        low = apply_linears(mixed, weights, *(lora.down for lora in self.loras))
        shares = tuple(lora.up(ops.softcap(part, cap=1.0), weights) for lora, part in zip(self.loras, low, strict=True))
        mixes = tuple(weights[mix.name] for mix in self.mixes)
        return dict(zip(MIXES, ops.mix_rows(x, delta, mixes, shares), strict=True))


class TimeMix6:
    """o(norm(wkv(...)) * silu(gate)). `eps` is of the norm of heads."""

    def __init__(self, name: str, config: ModelConfig, token_shift_rank: int, decay_rank: int, *, eps: float) -> None:
        width, self.head_dim, self.eps = config.width, config.head_dim, eps
        self.mixes = TokenMixes(name, width, token_shift_rank)
        self.r, self.k, self.v, self.g, self.o = (Linear(f"{name}.wkv_{part}", width, width) for part in "rkvgo")
        self.decay = LowRankProjection(f"{name}.wkv_decay", width, decay_rank, width, "tanh")
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
        sequences = step.starts, step.lengths, step.states
        out = ops.wkv6(r, self.decay(mixed["w"], weights), k, v, weights[self.bonus.name], state, *sequences)
        norm = (weights[param.name] for param in self.norm)
        return self.o(ops.silu_mul(gate, ops.group_norm(out, *norm, group=self.head_dim, eps=self.eps)), weights)


class GroupedTimeMix:
    """o(linear attention(...) * sigmoid(gate)), with keys and values shared by groups of heads (QRWKV6, Recursal
    2024)."""

    def __init__(self, name: str, config: ModelConfig, token_shift_rank: int, decay_rank: int) -> None:
        width, self.heads, self.kv_heads = config.width, config.heads, config.kv_heads
        self.mixes = TokenMixes(name, width, token_shift_rank)
        kv_width, bias = config.kv_heads * config.head_dim, config.attention_bias
        outs = (("q", width), ("k", kv_width), ("v", kv_width))
        self.qkv = [Linear(f"{name}.attn_{part}", out, width, bias=bias) for part, out in outs]
        self.g, self.o = (Linear(f"{name}.attn_{part}", width, width) for part in ("gate", "o"))
        self.decay = LowRankProjection(f"{name}.wkv_decay", width, decay_rank, width, "tanh")
        self.memory = State(((1, width), (width, config.head_dim)))

    def params(self) -> list[Param]:
        matrices = [param for part in (*self.qkv, self.g, self.o) for param in part.params()]
        return [*self.mixes.params(), *self.decay.params(), *matrices]

    def __call__(self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any) -> Any:  # x [tokens, width]
        row, state = cache
        mixed = self.mixes(x, step, weights, row)
        q, k, v = (part(mixed[name], weights) for part, name in zip(self.qkv, "rkv", strict=True))
        sequences, heads = (step.starts, step.lengths, step.states), {"heads": self.heads, "key_heads": self.kv_heads}
        decay = self.decay(mixed["w"], weights)
        out = ops.gated_linear_attention(q, decay, k, v, state, *sequences, **heads)
        return self.o(ops.activate_mul(self.g(mixed["g"], weights), out, kind="sigmoid"), weights)
