"""Mamba 1 and Falcon-Mamba: layers of selective state spaces and nothing else."""

from dataclasses import replace
from typing import Any

import numpy as np

from sporelm.checkpoints.family import OPTIONAL, Family, Field, HfClass, fields
from sporelm.checkpoints.fields import Fields
from sporelm.checkpoints.tensor_names import HF, Kind, Names, Table
from sporelm.models.blocks import Layer, MambaMixer, RMSNorm, SpaceChannels
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.selective_fields import selective_fields, selective_names, sized, with_rank
from sporelm.models.registry import architecture

NORMED, FALCON = "ssm.dt_b_c_rms", "FalconMambaForCausalLM"
EMBEDDING = Names("embedding.weight", "token_embd.weight", "backbone.embeddings.weight")
NAMES: Table = (
    EMBEDDING,
    Names("output_norm.weight", "output_norm.weight", "backbone.norm_f.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"),
    *selective_names("backbone.layers.{}.mixer."),
)
NUMBERS: dict[str, Any] = {"state_size": 16, "conv_kernel": 4, "expand": 2, "layer_norm_epsilon": 1e-5}
NUMBERS |= {"max_position_embeddings": 1 << 20, "tie_word_embeddings": True}
BIASES = (("use_bias", "own.bias"), ("use_conv_bias", "own.taps_bias"))


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Whether what is made of convolved rows is normed: Falcon-Mamba's."""
    normed = config.architecture == FALCON if kind == HF else values.flag(NORMED, False)
    config = sized(config, values, kind)
    eps = config.own.eps or config.eps
    return replace(config, own=replace(config.own, norms="bare", eps=eps) if normed else replace(config.own, eps=None))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    unused = ("attention.head_count", "feed_forward_length")
    return {f"mamba.{NORMED}": ("bool", config.own.norms == "bare")} | {f"mamba.{key}": ("u32", 0) for key in unused}


@architecture(
    Family(
        "mamba",
        (
            HfClass("MambaForCausalLM", "mamba", NUMBERS, BIASES),
            HfClass(FALCON, "falcon_mamba", NUMBERS | {"mixer_rms_eps": 1e-6}, BIASES),
        ),
        fields(
            *selective_fields(
                *("conv_kernel", "state_size", "time_step_rank", "expand", "use_bias", "use_conv_bias"),
                inner="intermediate_size",
            ),
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            # llama.cpp takes the other norms' for them; our own files say it besides.
            Field("own.eps", "ssm.dt_b_c_rms_epsilon", "f32", "mixer_rms_eps", 0.0, 1.0, OPTIONAL),
            without=("heads", "kv_heads", "head_dim", "ffn", "rotary", "window"),
        ),
        NAMES,
        others={HF: (EMBEDDING._replace(hf="backbone.embedding.weight"),)},
        fixed={"rotary": 0},
        finish=_finished,
        said=_said,
        choose=lambda config: FALCON if config.own.norms else "MambaForCausalLM",
        reworded=lambda values: with_rank(values, "time_step_rank"),
        attends=False,
        own=SpaceChannels,
    )
)
class Mamba(Decoder):
    """x + mixer(norm(x))."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), MambaMixer(name, config))

    def tables(self, context: int) -> dict[str, np.ndarray]:
        return super().tables(context) | self.config.own.tables()
