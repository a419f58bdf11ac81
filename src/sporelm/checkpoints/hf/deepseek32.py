"""Hugging Face folders of DeepSeek V3.2."""

from typing import Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.expert_keys import V3_HF_KEYS, hf_expert_keys
from sporelm.checkpoints.hf.deepseek2 import DEEPSEEK_V3_DEFAULTS, RENORMALIZE_KEY
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import INDEXER_HF_TENSORS, SPARSE_HF_KEYS, SPARSE_SUPPORTED, SparseHfSchema
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.deepseek32 import Deepseek32

DEEPSEEK32_KEYS: Final = hf_keys(*SPARSE_HF_KEYS, *V3_HF_KEYS, *hf_expert_keys(scores="scoring_func"))
DEEPSEEK32_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **LATENT_HF_TENSORS,
    **INDEXER_HF_TENSORS,
    **expert_tensors(),
    **shared_expert_tensors(),
    **choice_bias_tensors(),
}


@register
class DeepseekV32ForCausalLM(SparseHfSchema):
    """DeepSeek V3.2."""

    model_type = "deepseek_v32"
    architecture = Deepseek32
    keys = DEEPSEEK32_KEYS
    class_keys = RENORMALIZE_KEY
    defaults = {
        **DEEPSEEK_V3_DEFAULTS,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "max_position_embeddings": 163840,
    }
    supported = {**SPARSE_SUPPORTED, "indexer_rope_interleave": (False,)}
    tensors = DEEPSEEK32_TENSORS
