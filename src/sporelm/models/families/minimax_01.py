"""MiniMax-Text-01 and MiniMax-M1: seven layers of lightning attention to one of attention, all with experts."""

from typing import Any

import numpy as np

from sporelm.checkpoints.experts import expert_fields, expert_names
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, Names, changed
from sporelm.models.blocks import Attention, Layer, LightningAttention, NormedResidualLayer, RMSNorm, feed_forward
from sporelm.models.blocks.lightning_attention import decay_of_layer, decay_table_name
from sporelm.models.config import MOST_LAYERS, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families import delta_fields
from sporelm.models.families.minimax_words import (
    HF_CLASS,
    MAKERS,
    PARTS,
    LightningLayers,
    finished,
    reworded,
    unsaid,
    words,
)
from sporelm.models.registry import architecture

NET, MOE = "model.layers.{}.self_attn.", "model.layers.{}.block_sparse_moe."
DEFAULTS = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5}
DEFAULTS |= {"rope_theta": 1e6, "max_position_embeddings": 131072}
MODEL_TYPES = ("minimax", "minimax_m1", "minimax_text_01")
LEAST, MOST = 1e-6, 1e6


def _named(ours: str, gguf: str, hf: str) -> Names:
    return Names(f"layers.{{}}.lightning_{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{NET}{hf}.weight")


ONLY: dict[str, tuple[Any, ...]] = {f"{part}_beta_factor": (1,) for part in PARTS}
ONLY |= {"hidden_act": ("silu",), "sliding_window": (None,), "postnorm": (True,), "shared_intermediate_size": (0,)}
ONLY |= {"scoring_func": ("softmax",)}
FACTORS = (("full", "residual_scale"), ("linear", ""), ("mlp", ""))


@architecture(
    Family(
        "minimax-01",
        tuple(HfClass(name, kind, DEFAULTS) for name, kind in zip((HF_CLASS, *MAKERS), MODEL_TYPES, strict=True)),
        fields(
            *expert_fields(count="num_local_experts", used="num_experts_per_tok"),
            *(
                Field(f"own.{ours}", gguf, "f32", f"{part}_alpha_factor", LEAST, MOST, 1.0)
                for (ours, gguf), part in zip(FACTORS, PARTS, strict=True)
            ),
            Field("own.interval", "full_attention_interval", "u32", "", 1, MOST_LAYERS, 8),
            without=("window",),
        ),
        changed(
            COMMON,
            *expert_names(MOE, ("w1", "w3", "w2")),
            _named("qkv", "attn_qkv", "qkv_proj"),
            _named("gate", "attn_gate", "output_gate"),
            _named("norm", "attn_norm_2", "norm"),
            _named("o", "attn_output", "out_proj"),
        ),
        fixed={"experts.scores": "softmax_of_chosen"},
        only=ONLY,
        finish=finished,
        reworded=reworded,
        said=lambda config: delta_fields.said(config, "minimax-01"),
        choose=lambda config: HF_CLASS if config.rotary == config.head_dim else MAKERS[0],
        words=words,
        unsaid=unsaid,
        # What rows leave of states, which transformers keeps in folders; it follows from the configuration.
        ignored=tuple(f"{NET}{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
        partial_rotary=True,
        own=LightningLayers,
    )
)
class MiniMax01(Decoder):
    """A layer whose rows are normed as they are (MiniMax 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, own = f"layers.{index}", config.own
        norms = [RMSNorm(f"{name}.{part}_norm", config.width, config.eps) for part in ("attn", "ffn")]
        attends = index in own.attention
        mixer = Attention(name, config) if attends else LightningAttention(config, index)
        kept = own.full if attends else own.linear, own.mlp
        return NormedResidualLayer(norms[0], mixer, norms[1], feed_forward(name, config, index), kept=kept)

    def tables(self, context: int) -> dict[str, np.ndarray]:
        layers = [layer for layer in range(self.config.layers) if layer not in self.config.own.attention]
        return super().tables(context) | {
            decay_table_name(layer): decay_of_layer(self.config, layer) for layer in layers
        }
