"""XGLM: BioGPT's layer with sines and cosines of positions in place of learned embeddings."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sporelm import ops
from sporelm.models.architecture_registry import architecture
from sporelm.models.architectures.biogpt import ACTIVATIONS
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs

BASE: Final = 10000.0
FIRST_POSITION: Final = 2
POSITION_TABLE: Final = "position_sines"  # float32 [positions, width]


@architecture("xglm")
class XGLM(Decoder):
    """Norms before attention and the feed-forward block (Lin et al. 2021)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        mlp = MLP(f"layers.{index}", config, ACTIVATIONS[config.activation])
        return pre_norm(config, index, mlp=mlp, norm=self.norms)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return the position table: sines in the first half of a row, cosines in the second, as in tensor2tensor."""
        half = self.config.width // 2
        rates = BASE ** -(np.arange(half) / max(half - 1, 1))
        angles = (np.arange(context) + FIRST_POSITION)[:, None] * rates
        rows = np.zeros((context, self.config.width), np.float32)
        rows[:, :half], rows[:, half : 2 * half] = np.sin(angles), np.cos(angles)
        return {**super().tables(context), POSITION_TABLE: rows}

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.add(super().embedded(step, weights), ops.select_rows(weights[POSITION_TABLE], step.positions))
