"""Hugging Face folders of Phi-3, Phi-3.5 and Phi-4."""

from dataclasses import replace
from typing import Any

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP, fused_gate_up_tensors, fused_qkv_tensors
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.llama import Llama
from sporelm.models.config import ModelConfig
from sporelm.models.rope_scaling import LongRopeScaling


def with_longrope(values: ConfigValues) -> ConfigValues:
    """Return the values with the type "longrope" in place of its earlier names, which transformers accepts too."""
    scaling = values.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("rope_type", scaling.get("type")) not in ("su", "yarn"):
        return values
    return values.with_changes({"rope_scaling": {**scaling, "rope_type": "longrope"}})


@register
class Phi3ForCausalLM(HfSchema):
    """Phi-3. Query, key and value are fused into one tensor, gate and up projection into another."""

    model_type = "phi3"
    architecture = Llama
    class_keys = {"sliding_window": "window"}
    defaults = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
    tensors = {
        **DECODER_TENSORS,
        **fused_qkv_tensors(f"{ATTENTION}qkv_proj", parts=("weight",)),
        **fused_gate_up_tensors(f"{MLP}gate_up_proj.weight"),
    }
    allows_partial_rotary = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(with_longrope(values), dtype)
        return replace(config, window=read_window(values, "sliding_window", None))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        # The original context is outside `rope_scaling` and takes precedence.
        scaling = config.rope_scaling
        original = scaling.original if isinstance(scaling, LongRopeScaling) else config.context_length
        return {"partial_rotary_factor": config.rotary / config.head_dim, "original_max_position_embeddings": original}
