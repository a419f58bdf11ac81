"""Hugging Face folders of Refact."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.refact import REFACT_CONSTANTS
from sporelm.checkpoints.hf.exaone import GPT2_LAYER, GPT2_NAMED_TENSORS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import fused_gate_up_tensors
from sporelm.checkpoints.row_numbers import count_key_rows, rows_of_part
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, with_alternatives
from sporelm.checkpoints.transforms import TakeRows
from sporelm.models.architectures.refact import Refact
from sporelm.models.config import MAX_WIDTH, ModelConfig

FFN_UNIT: Final = 256  # the feed-forward width is a multiple of it
FUSED_TENSORS: Final[TensorTable] = {
    **{
        f"layers.{{}}.attn_{name}.weight": StoredAs(
            f"{GPT2_LAYER}attn.kv.weight", TakeRows(rows_of_part(place, count_key_rows, count_key_rows))
        )
        for place, name in enumerate("kv")
    },
    **fused_gate_up_tensors(f"{GPT2_LAYER}mlp.gate_up_proj.weight"),
}
# The first folders.
SEPARATE_TENSORS: Final[TensorTable] = {
    "layers.{}.attn_k.weight": f"{GPT2_LAYER}attn.k.weight",
    "layers.{}.attn_v.weight": f"{GPT2_LAYER}attn.v.weight",
    "layers.{}.ffn_gate.weight": f"{GPT2_LAYER}mlp.linear_1.weight",
    "layers.{}.ffn_up.weight": f"{GPT2_LAYER}mlp.linear_3.weight",
}


@register
class GPTRefactForCausalLM(HfSchema):
    """Refact. The feed-forward width is two thirds of `n_inner`, rounded up to a multiple of FFN_UNIT."""

    model_type = "gpt_refact"
    architecture = Refact
    keys = hf_keys(
        Key("layers", "n_layer", "u32"),
        Key("width", "n_embd", "u32"),
        Key("heads", "n_head", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        without=("head_dim", "kv_heads"),
    )
    defaults = {"n_positions": 4096, "layer_norm_epsilon": 1e-5}
    constants = REFACT_CONSTANTS
    supported = {"multi_query": (True,), "scale_attn_weights": (True,), "add_cross_attention": (False,)}
    positions_key = "n_positions"
    tensors = {
        **GPT2_NAMED_TENSORS,
        "layers.{}.attn_q.weight": f"{GPT2_LAYER}attn.q.weight",
        "layers.{}.attn_o.weight": f"{GPT2_LAYER}attn.c_proj.weight",
        **with_alternatives(FUSED_TENSORS, SEPARATE_TENSORS),
    }
    ignored_tensors = (f"{GPT2_LAYER}attn.bias", "transformer.bias")
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        numbers = ConfigValues(values.values, "config.json")
        inner = numbers.integer("n_inner", 1, MAX_WIDTH, 4 * numbers.integer("n_embd", 1, MAX_WIDTH))
        values = values.with_changes({"intermediate_size": -(-int(2 * inner / 3) // FFN_UNIT) * FFN_UNIT})
        return replace(super().config_from_json(values, dtype), kv_heads=1)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {"n_inner": config.ffn * 3 // 2, "multi_query": True}
