"""Hugging Face folders of CogVLM and CogVLM2: their text model.

Keys and defaults: configuration_cogvlm.py in the authors' folders. Their code has the base of rotary positions as a
constant.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, MLP
from sporelm.checkpoints.row_numbers import QKV_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import StackTwo, TakeRows, ZerosFirst
from sporelm.models.architectures.cogvlm import CogVLM, CogVLMConfig
from sporelm.models.config import ModelConfig

KV_HEADS: Final = "num_multi_query_heads"  # CogVLM2 has this key, CogVLM has not
THETA, SECOND_THETA = 1e4, 5e5
BOTH: Final = StackTwo("language", "vision")


@register
class CogVLMForCausalLM(HfSchema):
    """CogVLM, and CogVLM2 with fewer key heads and with biases of the visual expert."""

    model_type = "cogvlm"
    architecture = CogVLM
    keys = hf_keys(Key("kv_heads", KV_HEADS, "u32"))
    tensors = {
        **{name: row for name, row in DECODER_TENSORS.items() if "attn_norm" in name or "ffn_norm" in name},
        "embedding.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        **{
            f"layers.{{}}.attn_{name}_exps.weight": StoredAs(
                f"{ATTENTION}language_expert_query_key_value.weight", TakeRows(rows), BOTH
            )
            for name, rows in QKV_ROWS.items()
        },
        **{
            f"layers.{{}}.attn_{name}_exps.bias": StoredAs(
                f"{ATTENTION}vision_expert_query_key_value.bias", TakeRows(rows), ZerosFirst()
            )
            for name, rows in QKV_ROWS.items()
        },
        "layers.{}.attn_o_exps.weight": StoredAs(f"{ATTENTION}language_expert_dense.weight", BOTH),
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": StoredAs(f"{MLP}language_mlp.{name}_proj.weight", BOTH)
            for name in ("gate", "up", "down")
        },
    }
    ignored_tensors = ("model.vision.*",)

    def complete_values(self, json: Mapping[str, Any], where: str) -> ConfigValues:
        values = super().complete_values(json, where)
        theta = SECOND_THETA if values.has(KV_HEADS) else THETA
        return values if values.has("rope_theta") else values.with_changes({"rope_theta": theta})

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> CogVLMConfig:
        config = super().config_from_json(values, dtype)
        assert isinstance(config, CogVLMConfig)
        return replace(config, visual_bias=values.has(KV_HEADS))

    def json_from_config(self, config: ModelConfig, original_context: int | None = None) -> dict[str, Any]:
        assert isinstance(config, CogVLMConfig)
        found = super().json_from_config(config, original_context)
        return found if config.visual_bias else {key: value for key, value in found.items() if key != KV_HEADS}
