"""Hugging Face folders of gpt-oss."""

from typing import Any, Final

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.gpt_oss import GPT_OSS_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP
from sporelm.checkpoints.hf_windows import every_nth_layer, with_windows
from sporelm.checkpoints.row_numbers import count_expert_rows, interleaved_rows
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.models.architectures.gpt_oss import GptOss
from sporelm.models.config import ModelConfig

# The defaults for a folder without rotary parameters.
DEFAULT_ROPE: Final = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def expert_projections() -> TensorTable:
    """Return the experts' projections. They are [experts, in, out] with alternating gate and up rows; in MXFP4 they are
    [experts, out, in]."""
    transpose = Transpose("keep")
    found: TensorTable = {}
    for place, name in enumerate(("gate", "up")):
        rows = TakeRows(interleaved_rows(place, count_expert_rows), axis=1)
        found[f"layers.{{}}.ffn_{name}_exps.weight"] = StoredAs(f"{MLP}experts.gate_up_proj", transpose, rows)
        found[f"layers.{{}}.ffn_{name}_exps.bias"] = StoredAs(f"{MLP}experts.gate_up_proj_bias", rows)
    found["layers.{}.ffn_down_exps.weight"] = StoredAs(f"{MLP}experts.down_proj", transpose)
    found["layers.{}.ffn_down_exps.bias"] = f"{MLP}experts.down_proj_bias"
    return found


@register
class GptOssForCausalLM(HfSchema):
    """gpt-oss."""

    model_type = "gpt_oss"
    architecture = GptOss
    keys = hf_keys(
        *HF_ATTENTION_BIAS,
        *hf_expert_keys(count="num_local_experts", used="num_experts_per_tok", ffn="intermediate_size"),
    )
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window"}
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "attention_bias": True,
    }
    constants = GPT_OSS_ROUTING
    supported = {"hidden_act": ("silu",), "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_sinks.weight": f"{ATTENTION}sinks",
        "layers.{}.ffn_gate_inp.weight": f"{MLP}router.weight",
        "layers.{}.ffn_gate_inp.bias": f"{MLP}router.bias",
        **expert_projections(),
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(2)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        if not (values.get("rope_scaling") or values.get("rope_parameters")):
            values = values.with_changes({"rope_scaling": DEFAULT_ROPE})
        return with_windows(super().config_from_json(values, dtype), values, 2, window=None)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        full = config.full_layers
        kinds = ["full_attention" if layer in full else "sliding_attention" for layer in range(config.layers)]
        return {"layer_types": kinds}
