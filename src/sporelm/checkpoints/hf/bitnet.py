"""Hugging Face folders of BitNet b1.58."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, activation_key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bitnet import ACTIVATIONS, BitNet


@register
class BitNetForCausalLM(HfSchema):
    """BitNet."""

    model_type = "bitnet"
    architecture = BitNet
    keys = hf_keys(*HF_ATTENTION_BIAS, activation_key("hidden_act", "silu", ACTIVATIONS))
    class_keys = {"attention_bias": "attention_bias"}
    defaults = {"num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "relu2"}
    supported = {"mlp_bias": (False,)}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_sub_norm.weight": f"{ATTENTION}attn_sub_norm.weight",
        "layers.{}.ffn_sub_norm.weight": f"{MLP}ffn_sub_norm.weight",
    }
