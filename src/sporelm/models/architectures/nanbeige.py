"""Nanbeige 4.2: Llama's layers, run several times, with keys and values of their own each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import Memory
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs


@dataclass(frozen=True, kw_only=True)
class NanbeigeConfig(ModelConfig):
    """num_loops: how often a token passes all layers. skips_loop_norm: the last norm follows the last loop alone, not
    each of them."""

    num_loops: int = 1
    skips_loop_norm: bool = False


@architecture("nanbeige", NanbeigeConfig)
class Nanbeige(Decoder[NanbeigeConfig]):
    """The Llama layer (Nanbeige LLM Lab 2026)."""

    def __init__(self, config: NanbeigeConfig) -> None:
        super().__init__(config)
        self.passes = config.num_loops

    def memory_by_layer(self) -> list[tuple[int, Memory]]:
        return super().memory_by_layer() * self.passes

    def through(self, x: Any, step: StepInputs, weights: Mapping[str, Any], caches: Sequence[Any]) -> Any:
        caches_per_loop = len(caches) // self.passes
        for loop in range(self.passes):
            if loop and not self.config.skips_loop_norm:
                x = self.norm(x, weights)
            x = super().through(x, step, weights, caches[loop * caches_per_loop : (loop + 1) * caches_per_loop])
        return x
