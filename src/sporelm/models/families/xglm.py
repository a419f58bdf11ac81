"""XGLM: BioGPT's layer with sines and cosines of positions in place of learned ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.biogpt import KINDS, SCALED, finished, words
from sporelm.models.families.gpt2 import FIXED
from sporelm.models.families.opt_names import SKIPPED, opt_names
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, activation, fields

BASE = 10000.0
SINES = "position_sines"  # a table: float32 [positions, width]


@architecture(
    Family(
        "xglm",
        (HfClass("XGLMForCausalLM", "xglm", {"tie_word_embeddings": True}),),
        fields(
            Field("layers", "block_count", "u32", "num_layers"),
            Field("width", "embedding_length", "u32", "d_model"),
            Field("ffn", "feed_forward_length", "u32", "ffn_dim"),
            Field("heads", "attention.head_count", "u32", "attention_heads"),
            Field("eps", "attention.layer_norm_epsilon", "f32", ""),
            activation("activation_function", "gelu", KINDS),
            SCALED,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        opt_names("model.", "layer_norm"),
        fixed=FIXED,
        only={"add_cross_attention": (False,)},
        finish=finished,
        words=words,
        ignored=("model.embed_positions.weights",),
    )
)
class XGLM(Decoder):
    """Norms in front of attention and of a feed-forward block (Lin et al. 2021)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, KINDS[config.activation]), norm=self.norms)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        """The rows of positions: sines of one half, cosines of the other, as tensor2tensor has them; the first is 2."""
        half = self.config.width // 2
        rates = BASE ** -(np.arange(half) / max(half - 1, 1))
        angles = (np.arange(context) + SKIPPED)[:, None] * rates
        rows = np.zeros((context, self.config.width), np.float32)
        rows[:, :half], rows[:, half : 2 * half] = np.sin(angles), np.cos(angles)
        return {**super().tables(context), SINES: rows}

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.add(super().embedded(step, weights), ops.select_rows(weights[SINES], step.positions))
