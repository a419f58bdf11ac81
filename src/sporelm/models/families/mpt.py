"""MPT: layer norms without biases, GELU, and no positions but what linear biases tell attention."""

from dataclasses import replace
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.blocks import MLP, Layer, pre_norm, unbiased
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.weights.fields import Fields, shown
from sporelm.weights.forms import qkv_names
from sporelm.weights.names import COMMON, HF, Kind, Names, changed

MOST_OCTAVES, MOST_LIMIT = 1024, 1e6
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
    *qkv_names(f"{LAYER}attn.Wqkv", kinds=("weight",)),
)
# What `attn_config` of config.json may say, and what transformers takes where it is silent.
ATTENTION = {
    "attn_type": "multihead_attention",
    "softmax_scale": None,
    "prefix_lm": False,
    "qk_ln": False,
    "attn_uses_sequence_id": False,
    "alibi": True,
}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """config.json has an object about attention."""
    if kind != HF:
        return config
    given = values.values.get("attn_config") or {}
    if not isinstance(given, dict):
        raise ModelFileError(f"{values.where}: attn_config must be an object, it is {shown(given)}")
    for key, taken in ATTENTION.items():
        if given.get(key, taken) != taken:
            raise UnsupportedModel(f"{values.where}: {key} {shown(given[key])} is not supported; {taken} is")
    inner = Fields(given, values.where)
    limit = inner.number("clip_qkv", 0, MOST_LIMIT, 0.0) or None  # 0 is none, as in transformers
    return replace(config, alibi=inner.number("alibi_bias_max", 1, MOST_OCTAVES, 8.0), qkv_limit=limit)


def _words(config: ModelConfig) -> dict[str, Any]:
    octaves = int(config.alibi) if config.alibi % 1 == 0 else config.alibi
    return {"attn_config": {**ATTENTION, "alibi_bias_max": octaves, "clip_qkv": config.qkv_limit}}


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
            Field("qkv_limit", "attention.clamp_kqv", "f32", "", 1e-6, MOST_LIMIT, OPTIONAL),
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

    norms = staticmethod(unbiased)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu"), norm=self.norms)
