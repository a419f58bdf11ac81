"""Hugging Face folders of Qwen3-VL with a mixture of experts: its text model."""

from sporelm.checkpoints.config_keys import HF_ATTENTION_BIAS, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.hf.qwen2 import with_optional_windows
from sporelm.checkpoints.hf.qwen2moe import with_mlp_only_layers
from sporelm.checkpoints.hf.qwen3moe import with_num_experts
from sporelm.checkpoints.hf.qwen3vl import Qwen3VLForConditionalGeneration
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS, MLP, with_inner_prefix
from sporelm.checkpoints.row_numbers import EXPERT_GATE_UP_ROWS, count_expert_rows
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.models.architectures.qwen2vl import Qwen2VLConfig


def expert_projections() -> TensorTable:
    """Return the router and the experts' projections. The projections are [experts, in, out] as published, [experts,
    out, in] as transformers 5 writes them."""
    down = Transpose("keep", unless_last=count_expert_rows)
    gate_up = Transpose("keep", unless_last=lambda config: int(config.width))
    return {
        "layers.{}.ffn_gate_inp.weight": f"{MLP}gate.weight",
        "layers.{}.ffn_down_exps.weight": StoredAs(f"{MLP}experts.down_proj", down),
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": StoredAs(
                f"{MLP}experts.gate_up_proj", gate_up, TakeRows(rows, axis=1)
            )
            for name, rows in EXPERT_GATE_UP_ROWS.items()
        },
    }


@register
class Qwen3VLMoeForConditionalGeneration(Qwen3VLForConditionalGeneration):
    """Qwen3-VL with a mixture of experts."""

    model_type = "qwen3_vl_moe"
    keys = hf_keys(
        *hf_expert_keys(
            count="num_experts",
            used="num_experts_per_tok",
            ffn="moe_intermediate_size",
            step="decoder_sparse_step",
        ),
        *HF_ATTENTION_BIAS,
    )
    defaults = {
        "num_key_value_heads": 16,
        "tie_word_embeddings": True,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "max_position_embeddings": 128000,
        "rope_theta": 5e5,
    }
    constants = {"experts.renormalize": True}
    tensors = with_inner_prefix(DECODER_TENSORS | HEAD_NORM_TENSORS | expert_projections())

    def normalize(self, values: ConfigValues) -> ConfigValues:
        return with_num_experts(super().normalize(values))

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Qwen2VLConfig:
        config = super().config_from_json(values, dtype)
        values = self.normalize(values)
        return with_mlp_only_layers(with_optional_windows(config, values), values)
