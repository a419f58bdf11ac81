"""RecurrentGemma: Griffin's recurrent blocks, and attention with a window in every third layer."""

from dataclasses import replace
from typing import Any

import numpy as np

from sporelm.checkpoints.config_files import window_of
from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.tensor_names import HF, Kind
from sporelm.errors import ModelFileError
from sporelm.models.blocks import Attention, GatedMLP, GatedRecurrence, Layer, LruNumbers, pre_norm
from sporelm.models.config import MOST_WIDTH, ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.layer_kinds import ATTENTION, OTHER, attention_layers, by_key_heads, key_heads
from sporelm.models.families.recurrent_gemma_names import NAMES
from sporelm.models.families.space_fields import MOST_TAPS
from sporelm.models.registry import architecture

KINDS = {"attention": ATTENTION[0], "recurrent": OTHER[0]}
USUAL = ["recurrent", "recurrent", "attention"]
NUMBERS: dict[str, Any] = {"tie_word_embeddings": True, "conv1d_width": 4, PARTIAL: 0.5, "rms_norm_eps": 1e-6}
NUMBERS |= {"max_position_embeddings": 8192}


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    own, layers = config.own, config.layers
    channels = own.width or config.width
    if channels % config.heads:
        what = f"{channels} channels are not a multiple of {config.heads} heads"
        raise ModelFileError(f"{values.where}: {what}{values.among('lru_width', 'num_attention_heads')}")
    told = values.values.get("layer_types")
    if kind == HF:
        given = values.values["block_types"] if values.has("block_types") else USUAL
        kinds = (
            [KINDS.get(each, each) if isinstance(each, str) else each for each in given]
            if isinstance(given, list)
            else []
        )
        told = (kinds * layers)[:layers]
        config = replace(config, ffn=config.ffn // 2, window=window_of(values, "attention_window_size", 2048))
    own = replace(own, width=channels, attention=attention_layers(values, told or [ATTENTION[0]] * layers, layers))
    return replace(config, own=own, scales=replace(config.scales, embedding=_root(config.width)))


def _root(width: int) -> float:
    """Of the width, by which the embedding is multiplied; as bfloat16 has it, for all models were trained so."""
    bits = np.array(width**0.5, np.float32).view(np.uint32)
    return float(((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32))


def _words(config: ModelConfig) -> dict[str, Any]:
    kinds = ["attention" if layer in config.own.attention else "recurrent" for layer in range(config.layers)]
    return {"block_types": kinds, "intermediate_size": 2 * config.ffn, "attention_window_size": config.window}


@architecture(
    Family(
        "recurrentgemma",
        (HfClass("RecurrentGemmaForCausalLM", "recurrent_gemma", NUMBERS, (("attention_bias", "attention_bias"),)),),
        fields(
            Field("attention_bias", "", "bool", "attention_bias"),
            Field("logit_cap", "final_logit_softcapping", "f32", "logits_soft_cap", 1e-3, 1e6, 30.0),
            Field("own.taps", "ssm.conv_kernel", "u32", "conv1d_width", 2, MOST_TAPS),
            Field("own.width", "ssm.inner_size", "u32", "lru_width", 1, MOST_WIDTH, OPTIONAL),
        ),
        NAMES,
        fixed={"attention_out_bias": True, "mlp_bias": True},
        only={"hidden_activation": ("gelu_pytorch_tanh",)},
        finish=_finished,
        words=_words,
        rotary_words=lambda config: {PARTIAL: config.rotary / config.head_dim},
        said=lambda config: key_heads(config, "recurrentgemma", config.own.attention),
        regrouped=by_key_heads,
        partial_rotary=True,
        own=LruNumbers,
    )
)
class RecurrentGemma(Decoder):
    """Gemma's layer with a recurrent block in place of most of its attention (Botev et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name, attends = f"layers.{index}", index in config.own.attention
        mixer = Attention(name, config, config.window) if attends else GatedRecurrence(name, config)
        return pre_norm(config, index, mixer, GatedMLP(name, config, "gelu_tanh"))
