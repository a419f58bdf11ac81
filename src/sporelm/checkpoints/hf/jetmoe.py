"""Hugging Face folders of JetMoE."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.jetmoe import JETMOE_ROUTING
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, MLP, fused_expert_tensors
from sporelm.checkpoints.row_numbers import count_key_rows, rows_of_part
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.jetmoe import JetMoe
from sporelm.models.config import ModelConfig

ATTENTION: Final = f"{LAYER}self_attention."


def with_heads_of_experts(values: ConfigValues) -> ConfigValues:
    """Return the values with the number of query heads: one for each KV head in each expert of a token."""
    kv_heads = values.get("num_key_value_heads")
    experts = values.get("num_experts_per_tok")
    if type(kv_heads) is not int or type(experts) is not int:
        return values
    return values.with_changes({"num_attention_heads": kv_heads * experts})


@register
class JetMoeForCausalLM(HfSchema):
    """JetMoE."""

    model_type = "jetmoe"
    architecture = JetMoe
    keys = hf_keys(
        Key("head_dim", "kv_channels", "u32"),
        *hf_expert_keys(count="num_local_experts", used="num_experts_per_tok"),
    )
    defaults = {
        "num_key_value_heads": 16,
        "kv_channels": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    }
    constants = JETMOE_ROUTING
    supported = {"activation_function": ("silu",)}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_gate_inp.weight": f"{ATTENTION}experts.router.layer.weight",
        "layers.{}.attn_q_exps.weight": f"{ATTENTION}experts.input_linear.weight",
        "layers.{}.attn_output_exps.weight": f"{ATTENTION}experts.output_linear.weight",
        **{
            f"layers.{{}}.attn_{name}.weight": StoredAs(
                f"{ATTENTION}kv_proj.weight", TakeRows(rows_of_part(number, count_key_rows, count_key_rows))
            )
            for number, name in enumerate("kv")
        },
        "layers.{}.attn_mixture.bias": f"{ATTENTION}experts.bias",
        **fused_expert_tensors(f"{MLP}router.layer.weight", f"{MLP}input_linear.weight", f"{MLP}output_linear.weight"),
        "layers.{}.ffn_mixture.bias": f"{MLP}bias",
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        return super().config_from_json(with_heads_of_experts(values), dtype)
