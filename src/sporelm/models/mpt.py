"""MPT: layer norms without biases, GELU, and no positions but what linear biases tell attention."""

from dataclasses import replace
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks import MLP, Attention, Layer, LayerNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields, shown
from sporelm.weights.forms import QKV
from sporelm.weights.names import COMMON, HF, Kind, Names, Stored, changed

MOST_OCTAVES = 1024
LAYER = "transformer.blocks.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
    Names("output_norm.weight", "output_norm.weight", "transformer.norm_f.weight"),
    *(
        Names(f"layers.{{}}.{ours}.weight", f"blk.{{}}.{gguf}.weight", f"{LAYER}{hf}.weight")
        for ours, gguf, hf in (
            ("attn_norm", "attn_norm", "norm_1"),
            ("attn_o", "attn_output", "attn.out_proj"),
            ("ffn_norm", "ffn_norm", "norm_2"),
            ("ffn_up", "ffn_up", "ffn.up_proj"),
            ("ffn_down", "ffn_down", "ffn.down_proj"),
        )
    ),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            Stored("blk.{}.attn_qkv.weight", rows),
            Stored(f"{LAYER}attn.Wqkv.weight", rows),
        )
        for part, rows in QKV.items()
    ),
)
# What `attn_config` of config.json may say, and what transformers takes where it is silent.
ATTENTION = {
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """config.json has an object about attention."""
    if kind != HF:
        if values.has("attention.clamp_kqv"):
            raise UnsupportedModel(f"{values.where}: attention.clamp_kqv is not supported")
        return config
    given = values.values.get("attn_config") or {}
    if not isinstance(given, dict):
        raise ModelFileError(f"{values.where}: attn_config must be an object, it is {shown(given)}")
    for key, taken in ATTENTION.items():
        if given.get(key, taken) != taken:
            raise UnsupportedModel(f"{values.where}: {key} {shown(given[key])} is not supported; {taken} is")
    octaves = Fields(given, values.where).number("alibi_bias_max", 1, MOST_OCTAVES, 8.0)
    return replace(config, alibi=octaves)


def _words(config: ModelConfig) -> dict[str, Any]:
    octaves = int(config.alibi) if config.alibi % 1 == 0 else config.alibi
    return {"attn_config": {**ATTENTION, "alibi_bias_max": octaves}}


@architecture(
    Family(
        "mpt",
        tuple(
            HfClass(name, "mpt", {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5})
            for name in ("MptForCausalLM", "MPTForCausalLM")
        ),
        fields(
            Field("layers", "block_count", "u32", "n_layers"),
            Field("width", "embedding_length", "u32", "d_model"),
            Field("ffn", "feed_forward_length", "u32", ""),
            Field("heads", "attention.head_count", "u32", "n_heads"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            Field("alibi", "attention.max_alibi_bias", "f32", "", 1, MOST_OCTAVES),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed={"rotary": 0},
        only={"expansion_ratio": (4,), "no_bias": (True,), "logit_scale": (None,)},
        finish=_finished,
        words=_words,
        positions="max_seq_len",
        ffn_widths=4,
        prefix="transformer.",
    )
)
class Mpt(Decoder):
    """Attention with linear biases (Press et al. 2022) and a feed-forward block, norms in front."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            LayerNorm(f"{name}.attn_norm", config.width, config.eps, bias=False),
            Attention(name, config),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps, bias=False),
            MLP(name, config, "gelu"),
        )

    def last_norm(self, config: ModelConfig) -> LayerNorm:
        return LayerNorm("output_norm", config.width, config.eps, bias=False)
