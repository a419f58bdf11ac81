"""Falcon-H1: attention and a state space side by side in each layer, and multipliers of most intermediate results."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mamba2 import Mamba2Config
from sporelm.models.blocks import Attention, GatedMLP, Layer, Mamba2Mixer, ParallelMixers, pre_norm
from sporelm.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class FalconH1Config(Mamba2Config):
    """Multipliers of inputs and outputs, and the norms of Mamba mixers.

    has_mixer_norm        the output of the scan is normed
    is_norm_before_gate   the norm precedes the gate
    ssm_multipliers       of the parts of a mixer's input projection: the gate, values, B, C and time steps
    """

    has_mixer_norm: bool = False
    is_norm_before_gate: bool = False
    attention_in_multiplier: float = 1.0
    attention_out_multiplier: float = 1.0
    key_multiplier: float = 1.0
    ssm_in_multiplier: float = 1.0
    ssm_out_multiplier: float = 1.0
    mlp_gate_multiplier: float = 1.0
    mlp_down_multiplier: float = 1.0
    ssm_multipliers: tuple[float, ...] = (1.0,) * 5

    @property
    def gate_multiplier(self) -> float:
        """The multiplier of a mixer's gate."""
        return self.ssm_in_multiplier * self.ssm_multipliers[0]

    @property
    def time_step_multiplier(self) -> float:
        """The multiplier of a mixer's time steps."""
        return self.ssm_in_multiplier * self.ssm_multipliers[4]

    @property
    def conv_multipliers(self) -> NDArray[np.float64]:
        """The multiplier of each channel of the convolution: [channels]."""
        shared = self.mamba.num_groups * self.mamba.state_size
        return self.ssm_in_multiplier * np.repeat(self.ssm_multipliers[1:4], (self.mamba.inner_size, shared, shared))


@architecture("falcon_h1", FalconH1Config)
class FalconH1(Decoder[FalconH1Config]):
    """Llama's layer with a state space beside its attention (TII 2025). The weights of the convolution contain its
    multipliers."""

    def layer(self, config: FalconH1Config, index: int) -> Layer:
        name = f"layers.{index}"
        first = ("norm" if config.is_norm_before_gate else "gate") if config.has_mixer_norm else ""
        factors = config.gate_multiplier, config.time_step_multiplier
        mixer = ParallelMixers(
            Attention(name, config),
            Mamba2Mixer(name, config, config.mamba, first=first, factors=factors),
            in_factor=config.attention_in_multiplier,
            out_factors=(config.attention_out_multiplier, config.ssm_out_multiplier),
        )
        mlp = GatedMLP(name, config, factors=(config.mlp_gate_multiplier, config.mlp_down_multiplier))
        return pre_norm(config, index, mixer, mlp)
