"""nanochat: norms without weights, of the embedding, queries and keys too; squared ReLU, capped logits."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm.models.blocks import MLP, Attention, Layer, pre_norm
from sporelm.models.blocks.rms_norm import BareRMSNorm, ones_table
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import ROPE, StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, OPTIONAL, Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, Names, changed

LEAST, MOST = 1e-3, 1e6
NAMES = changed(
    COMMON,
    Names("layers.{}.ffn_up.weight", "blk.{}.ffn_up.weight", "model.layers.{}.mlp.fc1.weight"),
    Names("layers.{}.ffn_down.weight", "blk.{}.ffn_down.weight", "model.layers.{}.mlp.fc2.weight"),
)


@architecture(
    Family(
        "nanochat",
        (
            HfClass(
                "NanoChatForCausalLM",
                "nanochat",
                {"final_logit_softcapping": 15.0},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            Field("logit_cap", "final_logit_softcapping", "f32", "final_logit_softcapping", LEAST, MOST, OPTIONAL),
            without=("window",),
        ),
        NAMES,
        only={"hidden_act": ("relu2",)},
        words=lambda config: {"final_logit_softcapping": config.logit_cap},  # silence means 15
    )
)
class NanoChat(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Karpathy 2025)."""

    norms = BareRMSNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, norm="bare", norms_last=True)
        return pre_norm(config, index, attention, MLP(name, config, "relu_squared"), norm=self.norms)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """Pairs turn the other way round: sines have the other sign."""
        found = super().tables(context)
        half = found[ROPE].shape[1] // 2
        found[ROPE] = np.concatenate([found[ROPE][:, :half], -found[ROPE][:, half:]], axis=1)
        return {**found, **ones_table(self.config.width), **ones_table(self.config.head_dim)}

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.norm(super().embedded(step, weights), weights)
