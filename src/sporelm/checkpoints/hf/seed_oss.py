"""Hugging Face folders of Seed-OSS."""

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama

BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")


@register
class SeedOssForCausalLM(HfSchema):
    """Seed-OSS, with a flag for each kind of biases."""

    model_type = "seed_oss"
    architecture = Llama
    keys = hf_keys(*(Key(name, name, "bool") for name in BIASES))
    class_keys = {name: name for name in BIASES}
    defaults = {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288}
    tensors = DECODER_TENSORS
