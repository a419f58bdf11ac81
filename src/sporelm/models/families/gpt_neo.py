"""GPT-Neo, TinyStories: GPT-2 whose scores are not scaled, with a window in every other layer."""

from dataclasses import replace
from typing import Any

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import MLP, Attention, Layer, pre_norm
from sporelm.models.families.gpt2 import GPT2
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import window_of
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields, shown
from sporelm.weights.names import COMMON, HF, Kind, Names, changed, with_bias

LAYER = "transformer.h.{}."
KINDS = ("global", "local")
MOST_TYPES = 4096
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
    Names("positions.weight", "position_embd.weight", "transformer.wpe.weight"),
    *with_bias("output_norm", "output_norm", "transformer.ln_f"),
    *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{LAYER}ln_1"),
    *with_bias("layers.{}.ffn_norm", "blk.{}.ffn_norm", f"{LAYER}ln_2"),
    *(
        Names(
            f"layers.{{}}.attn_{part}.weight",
            f"blk.{{}}.attn_{part}.weight",
            f"{LAYER}attn.attention.{part}_proj.weight",
        )
        for part in "qkv"
    ),
    *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{LAYER}attn.attention.out_proj"),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.c_fc"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.c_proj"),
)


def _usual(layers: int) -> frozenset[int]:
    return frozenset(range(0, layers, 2))


def _kinds(values: Fields, layers: int) -> list[str]:
    """Of each layer, out of lists of kinds that are repeated so many times."""
    found: list[Any] = []
    told: Any = values.values.get("attention_types") or [[list(KINDS), layers // 2]]
    try:
        for kinds, count in told:
            found += list(kinds) * min(int(count), MOST_TYPES)
    except (TypeError, ValueError):
        found = []
    if len(found) != layers or any(kind not in KINDS for kind in found):
        what = f"attention_types is {shown(told)}"
        raise UnsupportedModel(f"{values.where}: {what}; it must give one of {KINDS} for each of the {layers} layers")
    return found


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    if kind != HF:
        return config
    full = frozenset(layer for layer, each in enumerate(_kinds(values, config.layers)) if each == KINDS[0])
    window = window_of(values, "window_size", 256) if len(full) < config.layers else None
    return replace(config, window=window, full_layers=full if window else frozenset())


def _words(config: ModelConfig) -> dict[str, Any]:
    kinds = [KINDS[config.window_of(layer) is not None] for layer in range(config.layers)]
    return {"attention_types": [[kinds, 1]], "window_size": config.window or 256}


@architecture(
    Family(
        "gpt_neo",
        (
            HfClass(
                "GPTNeoForCausalLM",
                "gpt_neo",
                {"tie_word_embeddings": True, "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "num_layers": 24},
            ),
        ),
        fields(
            Field("layers", "block_count", "u32", "num_layers"),
            Field("heads", "attention.head_count", "u32", "num_heads"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            without=("head_dim", "kv_heads", "rotary"),
        ),
        NAMES,
        fixed={"rotary": 0, "attention_out_bias": True, "mlp_bias": True, "scales.attention": 1.0},
        only={"activation_function": ("gelu_new", "gelu_pytorch_tanh")},
        finish=_finished,
        full_layers=_usual,
        tells_layers=True,
        words=_words,
        ffn_widths=4,
        ignored=(f"{LAYER}attn.attention.bias", f"{LAYER}attn.attention.masked_bias"),
        prefix="transformer.",
    )
)
class GPTNeo(GPT2):
    """GPT-2's layer (Black et al. 2021)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention = Attention(name, config, config.window_of(index))
        return pre_norm(config, index, attention, MLP(name, config, "gelu_tanh"), norm=self.norms)
