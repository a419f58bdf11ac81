"""GPT-J: one layer norm, then attention with rotary positions beside a feed-forward block."""

from dataclasses import replace
from typing import Any

from sporelm.errors import ModelFileError
from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_HEAD_DIM, ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, GGUF, Kind, Names, changed, with_bias

LAYER = "transformer.h.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
    *with_bias("output_norm", "output_norm", "transformer.ln_f"),
    *with_bias("output", "output", "lm_head"),
    *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{LAYER}ln_1"),
    *(
        Names(f"layers.{{}}.attn_{ours}.weight", f"blk.{{}}.attn_{gguf}.weight", f"{LAYER}attn.{hf}_proj.weight")
        for ours, gguf, hf in (("q", "q", "q"), ("k", "k", "k"), ("v", "v", "v"), ("o", "output", "out"))
    ),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.fc_in"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.fc_out"),
)
# What CodeGen shares.
NUMBERS = fields(
    Field("layers", "block_count", "u32", "n_layer"),
    Field("width", "embedding_length", "u32", "n_embd"),
    Field("ffn", "feed_forward_length", "u32", "n_inner"),
    Field("heads", "attention.head_count", "u32", "n_head"),
    Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
    without=("head_dim", "kv_heads", "window"),
)
ONLY: dict[str, tuple[Any, ...]] = {"activation_function": ("gelu_new", "gelu_pytorch_tanh")}
ONLY["tie_word_embeddings"] = (False,)
ALIKE: dict[str, Any] = {
    "fixed": {"parallel": True, "output_bias": True, "mlp_bias": True, "rope_style": "adjacent"},
    "words": lambda config: {"rotary_dim": config.rotary},
    "positions": "n_positions",
    "ffn_widths": 4,
    "prefix": "transformer.",
    "partial_rotary": True,
}
DEFAULTS = {"n_positions": 2048, "layer_norm_epsilon": 1e-5, "rotary_dim": 64}


def finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind == GGUF:
        return config
    rotary = values.integer("rotary_dim", 2, min(config.head_dim, MOST_HEAD_DIM))
    if rotary % 2:
        raise ModelFileError(f"{values.where}: rotary_dim is {rotary}; numbers are rotated in pairs")
    return replace(config, rotary=rotary)


@architecture(
    Family(
        "gptj",
        (HfClass("GPTJForCausalLM", "gptj", DEFAULTS),),
        NUMBERS,
        NAMES,
        only=ONLY,
        finish=finished,
        ignored=(f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias"),
        **ALIKE,
    )
)
class GPTJ(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both (Wang, Komatsuzaki 2021)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms, shared=True)
