"""Hugging Face folders of Qwen3.5: the text model alone, and the multimodal model."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_keys import hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import (
    ATTENTION_INTERVAL_KEY,
    DELTA_NET_HF_KEYS,
    as_delta_net_config,
    with_delta_net_layers,
)
from sporelm.checkpoints.gguf.qwen35 import QWEN35_CONSTANTS
from sporelm.checkpoints.hf.qwen3next import (
    DELTA_NET,
    DELTA_NET_DEFAULTS,
    DELTA_NET_SUPPORTED,
    GATED_ATTENTION_TENSORS,
    delta_net_json,
)
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.row_numbers import RowCount, RowNumbers
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, select_text_config
from sporelm.checkpoints.transforms import NegativeExp, PermuteColumns, Squeeze, TakeRows, Transpose
from sporelm.models.architectures.qwen3next import Qwen3Next, Qwen3NextConfig
from sporelm.models.config import ModelConfig


def _count_values(config: ModelConfig) -> int:
    shape = as_delta_net_config(config).delta_net
    return shape.inner_size // shape.num_value_heads


def _count_query_and_key_rows(config: ModelConfig) -> int:
    shape = as_delta_net_config(config).delta_net
    return 2 * shape.num_key_heads * shape.key_head_dim


def _alternating_heads(head_rows: RowCount, first_rows: RowCount = lambda config: 0) -> RowNumbers:
    """Return rows in the parameter's order: the first value head of each key head, then the second of each, and so on.

    In folders, value heads of the same key head are adjacent.

    head_rows    rows of each value head
    first_rows   rows before those of heads, which keep their order
    """

    def rows(config: ModelConfig) -> NDArray[np.int64]:
        shape = as_delta_net_config(config).delta_net
        heads = np.arange(shape.num_value_heads).reshape(shape.num_key_heads, -1).T.reshape(-1, 1)
        first, count = first_rows(config), head_rows(config)
        return np.concatenate([np.arange(first), first + (heads * count + np.arange(count)).reshape(-1)])

    return rows


HEAD_ORDER: Final = _alternating_heads(lambda config: 1)
VALUE_ORDER: Final = _alternating_heads(_count_values)
QKV_ORDER: Final = _alternating_heads(_count_values, _count_query_and_key_rows)
QWEN35_DEFAULTS: Final[Mapping[str, Any]] = {**DELTA_NET_DEFAULTS, "num_key_value_heads": 4}
QWEN35_TENSORS: Final[TensorTable] = {
    **GATED_ATTENTION_TENSORS,
    "layers.{}.delta_qkv.weight": StoredAs(f"{DELTA_NET}in_proj_qkv.weight", TakeRows(QKV_ORDER)),
    "layers.{}.delta_z.weight": StoredAs(f"{DELTA_NET}in_proj_z.weight", TakeRows(VALUE_ORDER)),
    "layers.{}.delta_beta.weight": StoredAs(f"{DELTA_NET}in_proj_b.weight", TakeRows(HEAD_ORDER)),
    "layers.{}.delta_alpha.weight": StoredAs(f"{DELTA_NET}in_proj_a.weight", TakeRows(HEAD_ORDER)),
    "layers.{}.delta_conv.weight": StoredAs(
        f"{DELTA_NET}conv1d.weight", Squeeze((1,), to_four=True), Transpose(), PermuteColumns(QKV_ORDER)
    ),
    "layers.{}.delta.decay": StoredAs(f"{DELTA_NET}A_log", TakeRows(HEAD_ORDER), NegativeExp()),
    "layers.{}.delta_dt.bias": StoredAs(f"{DELTA_NET}dt_bias", TakeRows(HEAD_ORDER)),
    "layers.{}.delta_norm.weight": f"{DELTA_NET}norm.weight",
    "layers.{}.delta_o.weight": StoredAs(f"{DELTA_NET}out_proj.weight", PermuteColumns(VALUE_ORDER)),
}


@register
class Qwen3_5ForCausalLM(HfSchema):
    """Qwen3.5's text model."""

    model_type = "qwen3_5_text"
    architecture = Qwen3Next
    keys = hf_keys(*DELTA_NET_HF_KEYS, ATTENTION_INTERVAL_KEY)
    defaults = QWEN35_DEFAULTS
    constants = QWEN35_CONSTANTS
    supported = {**DELTA_NET_SUPPORTED, "attn_output_gate": (True,)}
    tensors = QWEN35_TENSORS
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = ("mtp.*", "model.mtp.*", *MULTIMODAL_TENSORS)
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = without_image_rope(values.with_values(select_text_config(dict(values.values))))
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Qwen3NextConfig)
        return with_delta_net_layers(config, values, is_gguf=False)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return delta_net_json(config)


def without_image_rope(values: ConfigValues) -> ConfigValues:
    """Return the values without the rotary parameters of images."""
    rope = values.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return values
    return values.with_changes({"rope_parameters": {key: rope[key] for key in rope if not key.startswith("mrope")}})


@register
class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):
    """The multimodal Qwen3.5."""

    model_type = "qwen3_5"
