"""Hugging Face folders of PLaMo 1."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import PermuteColumns, TakeRows
from sporelm.errors import ModelFileError
from sporelm.models.architectures.plamo import Plamo
from sporelm.models.config import ModelConfig

LAYER: Final = "model.layers.layers.{}."
SHARED_KEY: Final = "n_shared_head"


def grouped_head_rows(config: ModelConfig) -> NDArray[np.int64]:
    """Return the rows of queries, group by group: in folders, the heads of different groups alternate."""
    heads = np.arange(config.heads).reshape(-1, config.kv_heads).T.reshape(-1, 1)
    found: NDArray[np.int64] = (heads * config.head_dim + np.arange(config.head_dim)).reshape(-1)
    return found


@register
class PlamoForCausalLM(HfSchema):
    """PLaMo. config.json has the number of query heads that share a KV head."""

    model_type = "plamo"
    architecture = Plamo
    constants = {"parallel": True}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_norm.weight": f"{LAYER}norm.weight",
        "layers.{}.attn_q.weight": StoredAs(f"{LAYER}self_attn.q_proj.weight", TakeRows(grouped_head_rows)),
        "layers.{}.attn_k.weight": f"{LAYER}self_attn.k_proj.weight",
        "layers.{}.attn_v.weight": f"{LAYER}self_attn.v_proj.weight",
        "layers.{}.attn_o.weight": StoredAs(f"{LAYER}self_attn.o_proj.weight", PermuteColumns(grouped_head_rows)),
        **{f"layers.{{}}.ffn_{name}.weight": f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
    }

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        heads = values.get("num_attention_heads")
        shared = values.get(SHARED_KEY, 8)
        if type(heads) is not int or type(shared) is not int or shared < 1 or heads % shared:
            what = f"{SHARED_KEY} is {format_value(shared)}; it must divide the number of heads, {format_value(heads)}"
            raise ModelFileError(f"config.json: {what}")
        return super().config_from_json(values.with_changes({"num_key_value_heads": heads // shared}), dtype)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {SHARED_KEY: config.heads // config.kv_heads}
