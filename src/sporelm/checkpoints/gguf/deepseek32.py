"""GGUF files of DeepSeek V3.2."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.expert_keys import V3_GGUF_KEYS, gguf_expert_keys
from sporelm.checkpoints.gguf_tensors import (
    CHOICE_BIAS_TENSORS,
    DECODER_TENSORS,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.latent_tensors import LATENT_GGUF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import INDEXER_GGUF_TENSORS, SPARSE_GGUF_KEYS, SparseGgufSchema
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.deepseek32 import Deepseek32

DEEPSEEK32_KEYS: Final = gguf_keys(*SPARSE_GGUF_KEYS, *V3_GGUF_KEYS, *gguf_expert_keys("scores"), without=("window",))
DEEPSEEK32_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **LATENT_GGUF_TENSORS,
    **INDEXER_GGUF_TENSORS,
    **expert_tensors(has_fused=True),
    **SHARED_EXPERT_TENSORS,
    **CHOICE_BIAS_TENSORS,
}


@register
class Deepseek32Gguf(SparseGgufSchema):
    """`deepseek32`."""

    names = ("deepseek32",)
    architecture = Deepseek32
    keys = DEEPSEEK32_KEYS
    tensors = DEEPSEEK32_TENSORS
