"""Hugging Face folders of XVERSE."""

from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class XverseForCausalLM(HfSchema):
    """XVERSE."""

    model_type = "xverse"
    architecture = Llama
    defaults = {"rms_norm_eps": 1e-6, "max_position_embeddings": 8192}
    tensors = DECODER_TENSORS
