"""RWKV-7's time mix: a generalized delta rule, in place of attention (Peng et al. 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.token_shift import LowRankProjection, shift_tokens
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

MIXES = "rwkvag"  # rows are mixed for receptance, decays, keys, values, in-context learning rates, the gate


@dataclass(frozen=True)
class TimeMix7Ranks:
    """Ranks of the products that compute decays, in-context learning rates, shares of the first layer's values, and
    the gate."""

    decay: int
    iclr: int
    value_residual: int
    gate: int


class TimeMix7:
    """o((norm(state read) + bonus of each row) * gate).

    eps        of the norm of heads
    is_first   it belongs to the first layer; the other layers mix its values into theirs
    """

    def __init__(self, name: str, config: ModelConfig, ranks: TimeMix7Ranks, *, eps: float, is_first: bool) -> None:
        width, dim, self.is_first = config.width, config.head_dim, is_first
        self.head_dim, self.eps = dim, eps
        self.mixes = [Param(f"{name}.mix_{part}.weight", (width,)) for part in MIXES]
        self.r, self.k, self.v, self.o = (Linear(f"{name}.wkv_{part}", width, width) for part in "rkvo")
        self.decay = LowRankProjection(f"{name}.wkv_decay", width, ranks.decay, width, "tanh")
        self.rate = LowRankProjection(f"{name}.wkv_rate", width, ranks.iclr, width)
        self.share = [] if is_first else [LowRankProjection(f"{name}.wkv_share", width, ranks.value_residual, width)]
        self.gate = LowRankProjection(f"{name}.wkv_gate", width, ranks.gate, width, "sigmoid", bias=False)
        self.vectors = [Param(f"{name}.wkv.{part}", (width,)) for part in ("removed", "kept")]
        self.vectors.append(Param(f"{name}.wkv.bonus", (config.heads, dim), plain=True))
        self.norm = [Param(f"{name}.wkv_norm.{kind}", (width,)) for kind in ("weight", "bias")]
        self.memory = State(((1, width), (width, dim)))

    def params(self) -> list[Param]:
        narrow = (self.decay, self.rate, *self.share, self.gate)
        matrices = [param for part in (self.r, self.k, self.v, self.o) for param in part.params()]
        matrices += [param for part in narrow for param in part.params()]
        return [*self.mixes, *matrices, *self.vectors, *self.norm]

    def __call__(
        self, x: Any, step: StepInputs, weights: Mapping[str, Any], cache: Any, values: Any = None
    ) -> tuple[Any, Any]:  # x [tokens, width]; values: those of the first layer, likewise
        """Return the output, and the values of the first layer."""
        row, state = cache
        delta = shift_tokens(x, step, weights, row)
        mixes = tuple(weights[mix.name] for mix in self.mixes)
        mixed = dict(zip(MIXES, ops.mix_rows(x, delta, mixes), strict=True))
        r, k, v = (part(mixed[name], weights) for part, name in ((self.r, "r"), (self.k, "k"), (self.v, "v")))
        values = v if self.is_first else values
        for share in self.share:
            v = ops.blend(v, values, share(mixed["v"], weights))
        rows = r, self.decay(mixed["w"], weights), k, v, self.rate(mixed["a"], weights)
        sequences = step.starts, step.lengths, step.states
        out, bonus = ops.wkv7(*rows, *(weights[param.name] for param in self.vectors), state, *sequences)
        norm = (weights[param.name] for param in self.norm)
        out = ops.add(ops.group_norm(out, *norm, group=self.head_dim, eps=self.eps), bonus)
        return self.o(ops.activate_mul(self.gate(mixed["g"], weights), out, kind="linear"), weights), values
