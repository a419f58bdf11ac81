"""GGUF files of JetMoE."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.jetmoe import JetMoe

JETMOE_ROUTING: Final = {"experts.scores": "softmax_of_chosen", "experts.added": True}


@register
class JetMoeGguf(GgufSchema):
    """`jetmoe`."""

    names = ("jetmoe",)
    architecture = JetMoe
    keys = gguf_keys(
        Key("head_dim", "attention.key_length", "u32"),
        Key("head_dim", "attention.value_length", "u32"),
        *gguf_expert_keys("count", "used"),
    )
    constants = JETMOE_ROUTING
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_gate_inp.weight": "blk.{}.attn_gate_inp.weight",
        "layers.{}.attn_q_exps.weight": "blk.{}.attn_q_exps.weight",
        "layers.{}.attn_output_exps.weight": "blk.{}.attn_output_exps.weight",
        "layers.{}.attn_mixture.bias": "blk.{}.attn_mixture.bias",
        **expert_tensors(),
        "layers.{}.ffn_mixture.bias": "blk.{}.ffn_mixture.bias",
    }
