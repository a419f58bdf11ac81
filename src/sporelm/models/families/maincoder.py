"""Maincoder: Llama with Llama 4's pairs, and norms of each head of queries and keys that are rotated already."""

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, HEAD_NORMS, Names, changed

NAMES = changed(
    COMMON,
    *HEAD_NORMS,
    *(
        Names(
            f"layers.{{}}.ffn_{part}.weight",
            f"blk.{{}}.ffn_{part}.weight",
            f"model.layers.{{}}.feed_forward.{part}_proj.weight",
        )
        for part in ("gate", "up", "down")
    ),
)
DEFAULTS = {"num_key_value_heads": 4, "head_dim": 96, "rms_norm_eps": 1e-5, "rope_theta": 1e6}


@architecture(
    Family(
        "maincoder",
        (HfClass("MaincoderForCausalLM", "maincoder", {**DEFAULTS, "tie_word_embeddings": True}),),
        fields(Field("ffn", "feed_forward_length", "u32", "intermediate_size_mlp"), without=("window",)),
        NAMES,
        fixed={"rope_style": "adjacent"},
        only={"hidden_act": ("silu",), "use_qk_norm": (True,), "attention_bias": (False,)},
        reworded=lambda values: {"intermediate_size_mlp": values.get("intermediate_size"), **values},
    )
)
class Maincoder(Decoder):
    """The Llama layer (Maincode 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, Attention(f"layers.{index}", config, norm="heads", norms_last=True))
