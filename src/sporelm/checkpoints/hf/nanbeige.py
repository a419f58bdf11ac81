"""Hugging Face folders of Nanbeige 4.2."""

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.gguf.nanbeige import LOOP_KEYS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.nanbeige import Nanbeige


@register
class NanbeigeForCausalLM(HfSchema):
    """Nanbeige 4.2."""

    model_type = "nanbeige"
    architecture = Nanbeige
    keys = hf_keys(*LOOP_KEYS)
    class_keys = {"skip_loop_final_norm": "skips_loop_norm"}
    supported = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,)}
    tensors = DECODER_TENSORS
