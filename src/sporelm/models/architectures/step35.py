"""Step 3.5 and 3.7 Flash: gated heads, more of them in layers with a window, and experts with clipped SwiGLU."""

from dataclasses import dataclass

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import ClampedMixture, ClampedMLP, HeadGatedAttention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.window_heads import WindowHeadsConfig


@dataclass(frozen=True, kw_only=True)
class Step35Config(WindowHeadsConfig):
    """Limits of SwiGLU in each layer; 0: there is none.

    swiglu_limits          of the experts
    shared_swiglu_limits   of the feed-forward block, or of the expert that all tokens pass
    """

    swiglu_limits: tuple[float, ...] = ()
    shared_swiglu_limits: tuple[float, ...] = ()


@architecture("step35", Step35Config)
class Step35(Decoder[Step35Config]):
    """The Llama layer with gated heads and a mixture (StepFun 2026)."""

    def layer(self, config: Step35Config, index: int) -> Layer:
        name = f"layers.{index}"
        attention = HeadGatedAttention(name, config.for_layer(index), config.window_of(index), "sigmoid")
        shared_limit = config.shared_swiglu_limits[index]
        if config.experts and config.experts.at(index):
            mixture = ClampedMixture(name, config, config.swiglu_limits[index], shared_limit)
            return pre_norm(config, index, attention, mixture)
        return pre_norm(config, index, attention, ClampedMLP(name, config, shared_limit))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return self.config.head_gate_tables(context)
