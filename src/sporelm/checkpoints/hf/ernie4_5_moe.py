"""Hugging Face folders of ERNIE 4.5's text mixtures."""

from dataclasses import replace

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.ernie4_5_moe import ERNIE_MOE_CONSTANTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    MLP,
    choice_bias_tensors,
    expert_tensors,
    shared_expert_tensors,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Squeeze
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import MAX_LAYERS, ModelConfig


@register
class Ernie4_5_MoeForCausalLM(HfSchema):
    """ERNIE 4.5 with a mixture of experts. `moe_layer_end_index` is the last layer with experts; -1 means the last
    layer."""

    model_type = "ernie4_5_moe"
    architecture = Llama
    keys = hf_keys(
        *hf_expert_keys(
            count="moe_num_experts",
            used="moe_k",
            ffn="moe_intermediate_size",
            shared="moe_num_shared_experts",
            leading="moe_layer_start_index",
            step="moe_layer_interval",
        )
    )
    defaults = {
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    }
    constants = ERNIE_MOE_CONSTANTS
    supported = {"hidden_act": ("silu",), "use_bias": (False,), "moe_norm_min": (1e-12,)}
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(),
        **shared_expert_tensors(),
        **choice_bias_tensors(StoredAs(f"{MLP}moe_statics.e_score_correction_bias", Squeeze((0,)))),
    }
    ignored_tensors = tuple(f"model.mtp_{part}.{{}}.*" for part in ("block", "emb_norm", "hidden_norm", "linear_proj"))

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        experts = config.experts
        assert experts is not None
        last = values.integer("moe_layer_end_index", -1, MAX_LAYERS, -1)
        dense = frozenset(range(last + 1, config.layers)) if last >= 0 else frozenset()
        return replace(config, experts=replace(experts, dense=dense, shared_ffn=experts.shared * experts.ffn))
