"""GGUF files of Llama, Mistral and Mixtral, and of InternLM converted to them."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS, expert_tensors
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama


@register
class LlamaGguf(GgufSchema):
    """`llama`. Queries and keys are permuted; llama.cpp reads no sliding window."""

    names = ("llama",)
    architecture = Llama
    keys = gguf_keys(*gguf_expert_keys("count", "used", optional=True))
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = DECODER_TENSORS | PERMUTED_QK_TENSORS | expert_tensors(has_single=True)
    llama_cpp_has_window = False
