"""DBRX: layer norms without biases, limits on queries, keys and values, and experts in every layer."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.experts import expert_fields, meaning
from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields, shown
from sporelm.checkpoints.forms import qkv_names
from sporelm.checkpoints.tensor_names import COMMON, Kind, Names, Stored, changed
from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import layer_norm_without_bias
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture

MOST_LIMIT, CLAMP = 1e6, "attention.clamp_kqv"
LAYER = "transformer.blocks.{}."
ATTENTION = f"{LAYER}norm_attn_norm."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
    Names("output_norm.weight", "output_norm.weight", "transformer.norm_f.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", f"{ATTENTION}norm_1.weight"),
    Names("layers.{}.attn_o.weight", "blk.{}.attn_output.weight", f"{ATTENTION}attn.out_proj.weight"),
    Names("layers.{}.ffn_norm.weight", "blk.{}.attn_output_norm.weight", f"{ATTENTION}norm_2.weight"),
    Names("layers.{}.ffn_gate_inp.weight", "blk.{}.ffn_gate_inp.weight", f"{LAYER}ffn.router.layer.weight"),
    *(
        Names(
            f"layers.{{}}.ffn_{part}_exps.weight",
            f"blk.{{}}.ffn_{part}_exps.weight",
            Stored(f"{LAYER}ffn.experts.mlp.{hf}", heads=True, transposed=part == "down"),
        )
        for part, hf in (("gate", "w1"), ("up", "v1"), ("down", "w2"))
    ),
    *qkv_names(f"{ATTENTION}attn.Wqkv", kinds=("weight",)),
)
# What objects of config.json say, by our words for it; and what they may say that we compute in one way alone.
INNER = {
    "attn_config": {"kv_n_heads": "kv_n_heads", "clip_qkv": "clip_qkv", "rope_theta": "rope_theta"},
    "ffn_config": {
        **{key: key for key in ("ffn_hidden_size", "moe_num_experts", "moe_top_k")},
        "moe_normalize_expert_weights": "norm_topk_prob",
    },
}
SILENT = {"attn_config": {"kv_n_heads": 1}, "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4}}
SILENT["ffn_config"] |= {"moe_top_k": 1, "moe_normalize_expert_weights": 1}


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """With what is said in its objects. Raises UnsupportedModel for weights of experts that are normed otherwise."""
    found: dict[str, Any] = {}
    for name, words in INNER.items():
        given = values.get(name) or {}
        if not isinstance(given, dict):
            raise UnsupportedModel(f"{name} must be an object, it is {shown(given)}")
        said = SILENT[name] | given
        found |= {ours: said[key] for key, ours in words.items() if key in said}
    norm, function = found["norm_topk_prob"], (values.get("ffn_config") or {}).get("ffn_act_fn") or {"name": "silu"}
    if norm not in (None, 1) or function != {"name": "silu"}:
        what = f"moe_normalize_expert_weights {shown(norm)} with ffn_act_fn {shown(function)}"
        raise UnsupportedModel(f"{what} is not supported; 1 or null with silu is")
    return {**found, **values, "norm_topk_prob": norm is not None}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    limit = values.number(CLAMP if kind == "gguf" else "clip_qkv", 0.0, MOST_LIMIT, 0.0)
    return replace(config, qkv_limit=limit or None)


def _words(config: ModelConfig) -> dict[str, Any]:
    experts = config.experts
    assert experts is not None
    held = {"kv_n_heads": config.kv_heads, "clip_qkv": config.qkv_limit, "rope_theta": config.rope_theta}
    held |= {"ffn_hidden_size": config.ffn, "moe_num_experts": experts.count, "moe_top_k": experts.used}
    held["norm_topk_prob"] = 1.0 if experts.renormalize else None
    return {name: {key: held[ours] for key, ours in words.items()} for name, words in INNER.items()}


@architecture(
    Family(
        "dbrx",
        (HfClass("DbrxForCausalLM", "dbrx", {"layer_norm_epsilon": 1e-5}),),
        fields(
            Field("layers", "block_count", "u32", "n_layers"),
            Field("width", "embedding_length", "u32", "d_model"),
            Field("ffn", "feed_forward_length", "u32", "ffn_hidden_size"),
            Field("heads", "attention.head_count", "u32", "n_heads"),
            Field("kv_heads", "attention.head_count_kv", "u32", "kv_n_heads"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            *expert_fields(("renormalize",), count="moe_num_experts", used="moe_top_k", renormalize="norm_topk_prob"),
            without=("head_dim", "window"),
        ),
        NAMES,
        fixed={"experts.renormalize": True},
        only={"tie_word_embeddings": (False,)},
        finish=_finished,
        said=lambda config: {f"dbrx.{CLAMP}": ("f32", config.qkv_limit or 0.0)},
        words=_words,
        unsaid=meaning(renormalize=True),
        reworded=_reworded,
        positions="max_seq_len",
    )
)
class Dbrx(Decoder):
    """The Llama layer with layer norms and a mixture (Databricks 2024)."""

    norms = staticmethod(layer_norm_without_bias)
