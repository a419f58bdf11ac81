"""HyperCLOVA X SEED Think: Granite's scales, and norms of what each block adds."""

from dataclasses import dataclass

from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import COMMON, Names, changed
from sporelm.models.blocks import Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.granite import LEAST, MOST, NUMBERS
from sporelm.models.registry import architecture

LAYER, POST = "model.layers.{}.", "layers.{}.attn_post_norm.weight"
FLAGS = (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"), ("use_post_norm", "own.behind"))
CHANGED = ("scales.attention", "scales.logits")  # a scale that may be null, and one that multiplies


@dataclass(frozen=True)
class ClovaParts:
    """What only this family has."""

    behind: bool = True  # what blocks add is normed


@architecture(
    Family(
        "hyperclovax",
        (HfClass("HyperCLOVAXForCausalLM", "hyperclovax", fields=FLAGS),),
        fields(
            *(each for each in NUMBERS if each.ours not in CHANGED),
            Field("scales.attention", "attention.scale", "f32", "attention_multiplier", LEAST, MOST, OPTIONAL),
            Field("scales.output", "logit_scale", "f32", "logits_scaling", LEAST, MOST, 1.0),
            Field("mlp_bias", "", "bool", "mlp_bias"),
            Field("own.behind", "", "bool", "use_post_norm", default=True, weight=POST),
        ),
        changed(
            COMMON,
            Names(POST, "blk.{}.post_attention_norm.weight", f"{LAYER}post_norm1.weight"),
            Names("layers.{}.ffn_post_norm.weight", "blk.{}.post_ffw_norm.weight", f"{LAYER}post_norm2.weight"),
        ),
        own=ClovaParts,
    )
)
class HyperClovaX(Decoder):
    """The Llama layer, scaled, with norms before and behind (Naver 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, behind=config.own.behind)
