"""nanochat: norms without weights, also of the embedding, queries and keys; squared ReLU, capped logits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import MLP, Attention, Layer, pre_norm
from sporelm.models.blocks.rms_norm import BareRMSNorm, ones_table
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import ROPE, StepInputs


@architecture("nanochat")
class NanoChat(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Karpathy 2025)."""

    norms = BareRMSNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, norm="bare", norms_last=True)
        return pre_norm(config, index, attention, MLP(name, config, "relu_squared"), norm=self.norms)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Return tables with negated sines: pairs are rotated in the other direction."""
        found = super().tables(context)
        half = found[ROPE].shape[1] // 2
        found[ROPE] = np.concatenate([found[ROPE][:, :half], -found[ROPE][:, half:]], axis=1)
        return {**found, **ones_table(self.config.width), **ones_table(self.config.head_dim)}

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.norm(super().embedded(step, weights), weights)
