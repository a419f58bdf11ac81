"""Mamba 2: layers of state spaces and nothing else."""

from typing import Any

from sporelm.checkpoints.family import Family, Field, HfClass, fields
from sporelm.checkpoints.tensor_names import Names, Table
from sporelm.models.blocks import Layer, Mamba2Mixer, RMSNorm, SpaceHeads
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder
from sporelm.models.families.space_fields import finished, space_fields, space_names, unsaid
from sporelm.models.registry import architecture

NAMES: Table = (
    Names("embedding.weight", "token_embd.weight", "backbone.embeddings.weight"),
    Names("output_norm.weight", "output_norm.weight", "backbone.norm_f.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "backbone.layers.{}.norm.weight"),
    *space_names("backbone.layers.{}.mixer."),
)
NUMBERS: dict[str, Any] = {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8, "conv_kernel": 4}
NUMBERS |= {"expand": 2, "layer_norm_epsilon": 1e-5, "max_position_embeddings": 1 << 20}
BIASES = (("use_bias", "own.bias"), ("use_conv_bias", "own.taps_bias"))


def _said(config: ModelConfig) -> dict[str, tuple[str, Any]]:
    return {"mamba2.attention.head_count": ("u32", 0), "mamba2.feed_forward_length": ("u32", 0)}


@architecture(
    Family(
        "mamba2",
        (HfClass("Mamba2ForCausalLM", "mamba2", NUMBERS, BIASES),),
        fields(
            *space_fields(
                *("conv_kernel", "num_heads", "n_groups", "state_size", "head_dim", "expand"),
                *("use_bias", "use_conv_bias"),
            ),
            Field("eps", "attention.layer_norm_rms_epsilon", "f32", "layer_norm_epsilon"),
            without=("heads", "kv_heads", "head_dim", "ffn", "rotary", "window"),
        ),
        NAMES,
        fixed={"rotary": 0},
        finish=finished,
        unsaid=unsaid,
        said=_said,
        attends=False,
        own=SpaceHeads,
    )
)
class Mamba2(Decoder):
    """x + mixer(norm(x))."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(RMSNorm(f"{name}.attn_norm", config.width, config.eps), Mamba2Mixer(name, config))
