"""OLMo Hybrid: three pre-norm layers of gated delta nets to one layer of OLMo 2 and 3."""

from dataclasses import dataclass
from typing import Final

from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.olmo2 import post_norm_layer
from sporelm.models.architectures.qwen3next import Qwen3NextConfig
from sporelm.models.blocks import Layer, SplitDeltaNet, pre_norm
from sporelm.models.decoder import Decoder

EPS: Final = 1e-5  # of the norms of delta nets, independent of the model's


@dataclass(frozen=True, kw_only=True)
class OlmoHybridConfig(Qwen3NextConfig):
    """has_negative_eigenvalues: a row may reverse what the state stores for its key, since beta goes up to 2."""

    has_negative_eigenvalues: bool = True


@architecture("olmo_hybrid", OlmoHybridConfig)
class OlmoHybrid(Decoder[OlmoHybridConfig]):
    """x + delta(norm(x)), x + mlp(norm(x)); in every fourth layer x + norm(attention(x)), x + norm(mlp(x))."""

    def layer(self, config: OlmoHybridConfig, index: int) -> Layer:
        if index in config.attention_layers:
            return post_norm_layer(config, index)
        max_beta = 2.0 if config.has_negative_eigenvalues else 1.0
        delta_net = SplitDeltaNet(f"layers.{index}", config, config.delta_net, max_beta=max_beta, eps=EPS)
        return pre_norm(config, index, delta_net)
