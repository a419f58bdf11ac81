"""Nemotron-H and Nemotron 3: each layer is a state space, attention, a block of squared ReLU or a mixture of such
blocks."""

from dataclasses import dataclass
from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.mamba2 import Mamba2Config
from sporelm.models.blocks import MLP, Attention, Layer, Mamba2Mixer, Mixture, MLPOnlyMixer, RMSNorm
from sporelm.models.blocks.layer import Mixer
from sporelm.models.decoder import Decoder

MAMBA: Final = "linear_attention"
ATTENTION: Final = "full_attention"
MOE: Final = "moe"
DENSE: Final = "mlp"


@dataclass(frozen=True, kw_only=True)
class NemotronHConfig(Mamba2Config):
    """layer_types: MAMBA, ATTENTION, MOE or DENSE, of each layer."""

    layer_types: tuple[str, ...] = ()


@architecture("nemotron_h", NemotronHConfig)
class NemotronH(Decoder[NemotronHConfig]):
    """x + mixer(norm(x)) (NVIDIA 2025).

    Time steps have no minimum, as in llama.cpp: transformers has one in prompts, but not when it continues token by
    token.
    """

    def layer(self, config: NemotronHConfig, index: int) -> Layer:
        name, kind = f"layers.{index}", config.layer_types[index]
        mixer: Mixer
        if kind == MAMBA:
            mixer = Mamba2Mixer(name, config, config.mamba)
        elif kind == ATTENTION:
            mixer = Attention(name, config)
        else:
            mixer = MLPOnlyMixer(Mixture(name, config) if kind == MOE else MLP(name, config, "relu_squared"))
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), mixer)
