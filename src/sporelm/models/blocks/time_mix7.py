"""RWKV-7's time mix: a generalized delta rule, in the place of attention (Peng et al. 2025)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sporelm import ops
from sporelm.models.blocks.block_memory import State
from sporelm.models.blocks.linear import Linear
from sporelm.models.blocks.token_shift import LowRank, shift_tokens
from sporelm.models.config import ModelConfig
from sporelm.models.inputs import StepInputs
from sporelm.models.params import Param

MIXES = "rwkvag"  # what rows are mixed for: reading, decays, keys, values, rates, the gate


@dataclass(frozen=True)
class MixRanks:
    """Numbers of a model of such mixes; the record of its family (`own`)."""

    decay: int  # the ranks of what makes decays, rates, shares of the first layer's values, and the gate
    rate: int
    share: int
    gate: int
    eps: float | None = None  # of the norm of heads


class TimeMix7:
    """o((norm(what the state says) + what each row adds by itself) * gate).

    first  whether it is of the first layer, whose values the others mix theirs with
    """

    def __init__(self, name: str, config: ModelConfig, *, first: bool) -> None:
        own: MixRanks = config.own
        width, dim, self.first = config.width, config.head_dim, first
        self.dim, self.eps = dim, own.eps
        self.mixes = [Param(f"{name}.mix_{part}.weight", (width,)) for part in MIXES]
        self.r, self.k, self.v, self.o = (Linear(f"{name}.wkv_{part}", width, width) for part in "rkvo")
        self.decay = LowRank(f"{name}.wkv_decay", width, own.decay, width, "tanh")
        self.rate = LowRank(f"{name}.wkv_rate", width, own.rate, width)
        self.share = [] if first else [LowRank(f"{name}.wkv_share", width, own.share, width)]
        self.gate = LowRank(f"{name}.wkv_gate", width, own.gate, width, "sigmoid", bias=False)
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
        """What is added to the rows, and the first layer's values."""
        row, state = cache
        delta = shift_tokens(x, step, weights, row)
        mixes = tuple(weights[mix.name] for mix in self.mixes)
        mixed = dict(zip(MIXES, ops.mix_rows(x, delta, mixes), strict=True))
        r, k, v = (part(mixed[name], weights) for part, name in ((self.r, "r"), (self.k, "k"), (self.v, "v")))
        values = v if self.first else values
        for share in self.share:
            v = ops.blend(v, values, share(mixed["v"], weights))
        given = r, self.decay(mixed["w"], weights), k, v, self.rate(mixed["a"], weights)
        whose = step.starts, step.lengths, step.states
        made, alone = ops.wkv7(*given, *(weights[param.name] for param in self.vectors), state, *whose)
        norm = (weights[param.name] for param in self.norm)
        made = ops.add(ops.group_norm(made, *norm, group=self.dim, eps=self.eps), alone)
        return self.o(ops.activate_mul(self.gate(mixed["g"], weights), made, kind="linear"), weights), values
