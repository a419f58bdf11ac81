"""Hugging Face folders of Mistral Small 4."""

from collections.abc import Mapping
from typing import Any, Final

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import V3_HF_KEYS
from sporelm.checkpoints.gguf.mistral3 import TEMPERATURE_KEY, check_temperature
from sporelm.checkpoints.gguf.mistral4 import MISTRAL4_CONSTANTS
from sporelm.checkpoints.hf.mistral3 import BETA, DEFAULT_ROPE
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, MLP, fused_expert_tensors, shared_expert_tensors
from sporelm.checkpoints.latent_keys import LATENT_HF_KEYS, LatentHfSchema
from sporelm.checkpoints.latent_tensors import LATENT_HF_TENSORS
from sporelm.checkpoints.rope_fields import PARTIAL
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.mistral4 import Mistral4, Mistral4Config
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import YarnScaling

# transformers' defaults for a config.json without rotary parameters.
MISTRAL4_ROPE: Final = {
    **DEFAULT_ROPE,
    "rope_theta": 1e4,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
}
# Keys in the rotary parameters that are not rotary parameters.
OTHER_KEYS: Final = (BETA, "max_position_embeddings", PARTIAL)


@register
class Mistral4ForCausalLM(LatentHfSchema):
    """Mistral Small 4."""

    model_type = "mistral4"
    architecture = Mistral4
    keys = hf_keys(*LATENT_HF_KEYS, *V3_HF_KEYS, TEMPERATURE_KEY._replace(key=BETA))
    class_keys = {"norm_topk_prob": "experts.renormalize"}
    defaults = {
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "qk_nope_head_dim": 64,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "norm_topk_prob": True,
        "max_position_embeddings": 1 << 20,
    }
    constants = MISTRAL4_CONSTANTS
    supported = {"hidden_act": ("silu",), "attention_bias": (False,)}
    tensors = {
        **DECODER_TENSORS,
        **LATENT_HF_TENSORS,
        **fused_expert_tensors(f"{MLP}gate.weight", f"{MLP}experts.gate_up_proj", f"{MLP}experts.down_proj"),
        **shared_expert_tensors(),
    }
    reads_rope_interleave = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        given = values.get("rope_parameters") or MISTRAL4_ROPE
        if isinstance(given, Mapping):
            rope = {name: value for name, value in given.items() if name not in OTHER_KEYS}
            values = values.with_changes({"rope_parameters": rope, BETA: given.get(BETA)})
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Mistral4Config)
        check_temperature(config, config.temperature_scale, values.where)
        return config

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        assert isinstance(config, Mistral4Config)
        found = super().extra_json(config)
        rope = {**found.pop("rope_scaling", {"rope_type": "default"}), "rope_theta": config.rope_theta}
        if isinstance(config.rope_scaling, YarnScaling):
            rope[BETA] = config.temperature_scale
        return found | {"rope_scaling": None, "rope_parameters": rope, "head_dim": config.head_dim}
