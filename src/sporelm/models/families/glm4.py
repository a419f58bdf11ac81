"""GLM-4-0414: half of each head is rotated, by neighbours, and what each block adds is normed too."""

from dataclasses import replace

import numpy as np

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.chatglm import LAYER, neighbours
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, fields
from sporelm.weights.fields import Fields
from sporelm.weights.forms import gate_up_names
from sporelm.weights.names import COMMON, HF, Kind, Names, changed

NAMES = changed(
    COMMON,
    *gate_up_names(f"{LAYER}mlp.gate_up_proj.weight"),
    *(
        Names(f"layers.{{}}.{ours}_post_norm.weight", f"blk.{{}}.{gguf}.weight", f"model.layers.{{}}.{hf}.weight")
        for ours, gguf, hf in (
            ("attn", "post_attention_norm", "post_self_attn_layernorm"),
            ("ffn", "post_ffw_norm", "post_mlp_layernorm"),
        )
    ),
)


def _ordered(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Files of models that see as well (GLM-4.1V) have the rows of each head in the order of halves."""
    sections = values.values.get("rope.dimension_sections") if kind != HF else None
    return config if sections is None or not np.any(sections) else replace(config, rope_style="half")


def _class(config: ModelConfig) -> str:
    if config.rope_style == "half":
        raise UnsupportedModel("heads in the order of halves (rope.dimension_sections) are of no class of transformers")
    return "Glm4ForCausalLM"


@architecture(
    Family(
        "glm4",
        (neighbours("Glm4ForCausalLM", "glm4"),),
        fields(Field("attention_bias", "", "bool", "attention_bias"), without=("window",)),
        NAMES,
        fixed={"rope_style": "adjacent"},
        finish=_ordered,
        choose=_class,
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        partial_rotary=True,
        further_layers=True,
    )
)
class Glm4(Decoder):
    """The Llama layer with norms in front of its blocks and behind them (GLM team 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, behind=True)
