"""Gemma 1: Llama with a GELU gate, wide heads, an embedding scaled by its width, and norms stored less one."""

from dataclasses import replace

from sporelm.checkpoints.family import Family, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import COMMON, Kind, Names, Stored, Table, changed
from sporelm.models.blocks import GatedMLP, Layer, pre_norm
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture


def less_one(*names: Names) -> Table:
    """Norms whose weights Hugging Face folders hold less one; GGUF files hold them whole."""
    return tuple(Names(each.ours, each.gguf, Stored(str(each.hf), plus=1.0)) for each in names)


def embedded(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, scales=replace(config.scales, embedding=config.width**0.5))


NORMS = less_one(*(names for names in COMMON if names.ours.endswith("norm.weight")))
DEFAULTS = {"tie_word_embeddings": True, "head_dim": 256, "max_position_embeddings": 8192}
USUAL = {"attention_bias": (False,), "use_bidirectional_attention": (False,)}


@architecture(
    Family(
        "gemma",
        (HfClass("GemmaForCausalLM", "gemma", {**DEFAULTS, "num_key_value_heads": 16}),),
        fields(without=("window",)),
        changed(COMMON, *NORMS),
        only={"hidden_act": ("gelu_pytorch_tanh", "gelu"), "hidden_activation": ("gelu_pytorch_tanh",), **USUAL},
        finish=embedded,
    )
)
class Gemma(Decoder):
    """The Llama layer with GeGLU (Gemma team 2024). What old folders call "gelu" was always the one by a tanh."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=GatedMLP(f"layers.{index}", config, "gelu_tanh"))
