"""JetMoE: Llama's layer with experts in both blocks; those of attention compute its queries and its outputs."""

from dataclasses import replace
from typing import Final

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import AttentionExperts, Layer, expert_head_tables, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder

LAYER_EPS: Final = 1e-6  # of the norms in layers; `config.eps` is that of the last norm


@architecture("jetmoe")
class JetMoe(Decoder):
    """The Llama layer with two mixtures, each with a bias (Shen et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(replace(config, eps=LAYER_EPS), index, AttentionExperts(f"layers.{index}", config))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | expert_head_tables(self.config)
