"""Hugging Face folders of GLM-5, 5.1 and 5.2."""

from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.glm_dsa import INDEXER_TYPES, scheduled_types, with_shared_layers
from sporelm.checkpoints.hf.deepseek2 import DEEPSEEK_V3_DEFAULTS, RENORMALIZE_KEY
from sporelm.checkpoints.hf.deepseek32 import DEEPSEEK32_KEYS, DEEPSEEK32_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import SPARSE_SUPPORTED, SparseHfSchema, get_indexer
from sporelm.models.architectures.glm_dsa import GlmDsa
from sporelm.models.config import ModelConfig


@register
class GlmMoeDsaForCausalLM(SparseHfSchema):
    """GLM-5."""

    model_type = "glm_moe_dsa"
    architecture = GlmDsa
    keys = DEEPSEEK32_KEYS
    class_keys = RENORMALIZE_KEY
    defaults = {
        **DEEPSEEK_V3_DEFAULTS,
        "q_lora_rank": 2048,
        "v_head_dim": 256,
        "qk_nope_head_dim": 192,
        "n_group": 1,
        "topk_group": 1,
        "rms_norm_eps": 1e-5,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "max_position_embeddings": 202752,
    }
    supported = {**SPARSE_SUPPORTED, "indexer_rope_interleave": (True,)}
    tensors = DEEPSEEK32_TENSORS

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        return with_shared_layers(config, _read_types(config, values), values.where)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        shared = get_indexer(config).shared_layers
        types = [INDEXER_TYPES[layer not in shared] for layer in range(config.layers)]
        return {**super().extra_json(config), "indexer_types": types}


def _read_types(config: ModelConfig, values: ConfigValues) -> Any:
    if (types := values.get("indexer_types")) is not None:
        return types
    if (pattern := values.get("index_topk_pattern")) is not None:
        letters = {name[0].upper(): name for name in INDEXER_TYPES}
        return [letters.get(each) for each in pattern] if isinstance(pattern, str) else pattern
    step = values.integer("index_topk_freq", 0, config.layers, 1)
    return scheduled_types(config.layers, step, values.integer("index_skip_topk_offset", 0, config.layers, 2))
