"""Nanbeige 4.2: Llama's layers, gone through several times, each time with keys and values of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.models.blocks import Memory
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture

MOST_LOOPS = 64


@dataclass(frozen=True)
class Loops:
    """What only this family has."""

    count: int = 1  # times that a token goes through the layers
    unnormed: bool = False  # the last norm stands behind the last time alone, not between them too


@architecture(
    Family(
        "nanbeige",
        (HfClass("NanbeigeForCausalLM", "nanbeige", fields=(("skip_loop_final_norm", "own.unnormed"),)),),
        fields(
            Field("own.count", "num_loops", "u32", "num_loops", 1, MOST_LOOPS, 1),
            Field("own.unnormed", "skip_loop_final_norm", "bool", "skip_loop_final_norm", default=False),
            without=("window",),
        ),
        only={"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)},
        paired_rows=True,
        own=Loops,
    )
)
class Nanbeige(Decoder):
    """The Llama layer (Nanbeige LLM Lab 2026)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.passes = config.own.count

    def memory(self) -> list[Memory]:
        return super().memory() * self.passes

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        kept = len(caches) // self.passes
        for loop in range(self.passes):
            x = x if loop == 0 or self.config.own.unnormed else self.norm(x, weights)
            x = super().through(x, step, weights, caches[loop * kept : (loop + 1) * kept])
        return x
