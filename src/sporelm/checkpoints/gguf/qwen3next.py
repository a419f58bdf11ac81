"""GGUF files of Qwen3-Next."""

from typing import Final

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.delta_net_keys import (
    ATTENTION_INTERVAL_KEY,
    DELTA_NET_GGUF_KEYS,
    as_delta_net_config,
    recurrent_layers_metadata,
    with_delta_net_layers,
)
from sporelm.checkpoints.expert_keys import find_unsupported_routing, gguf_expert_keys
from sporelm.checkpoints.gguf.qwen2moe import SHARED_GATE_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    POST_ATTENTION_AS_FFN_NORM,
    SHARED_EXPERT_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.row_numbers import RowNumbers, rows_of_groups
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.models.architectures.qwen3next import Qwen3Next, Qwen3NextConfig
from sporelm.models.config import ModelConfig


def _count_key_heads(config: ModelConfig) -> int:
    return as_delta_net_config(config).delta_net.num_key_heads


def _count_key_rows(config: ModelConfig) -> int:
    return as_delta_net_config(config).delta_net.key_head_dim


def _count_value_rows(config: ModelConfig) -> int:
    """Return the number of value rows that share a key head."""
    shape = as_delta_net_config(config).delta_net
    return shape.inner_size // shape.num_key_heads


def _count_value_heads(config: ModelConfig) -> int:
    """Return the number of value heads that share a key head."""
    shape = as_delta_net_config(config).delta_net
    return shape.num_value_heads // shape.num_key_heads


def _qkvz_rows(*parts: int) -> RowNumbers:
    sizes = (_count_key_rows, _count_key_rows, _count_value_rows, _count_value_rows)
    return rows_of_groups(parts, _count_key_heads, *sizes)


# Rows of a tensor that has, for each key head, its query, key, values and gates.
QKV_ROWS: Final = _qkvz_rows(0, 1, 2)
Z_ROWS: Final = _qkvz_rows(3)
# Rows of a tensor that has, for each key head, the betas of its value heads, then their alphas.
BETA_ALPHA_ROWS: Final = {
    name: rows_of_groups((part,), _count_key_heads, _count_value_heads, _count_value_heads)
    for part, name in enumerate(("beta", "alpha"))
}
# Rows of a tensor that has, for each attention head, its query and its gate.
QUERY_GATE_ROWS: Final = {
    name: rows_of_groups(
        (part,), lambda config: config.heads, lambda config: config.head_dim, lambda config: config.head_dim
    )
    for part, name in enumerate(("q", "gate"))
}
GATED_QUERY_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.attn_{name}.weight": StoredAs("blk.{}.attn_q.weight", TakeRows(rows))
    for name, rows in QUERY_GATE_ROWS.items()
}
# Tensors of delta nets with the same names in Qwen3-Next and Qwen3.5.
DELTA_NET_TENSORS: Final[TensorTable] = {
    "layers.{}.delta_qkv.weight": "blk.{}.attn_qkv.weight",
    "layers.{}.delta_z.weight": "blk.{}.attn_gate.weight",
    "layers.{}.delta_conv.weight": StoredAs("blk.{}.ssm_conv1d.weight", Transpose()),
    "layers.{}.delta.decay": "blk.{}.ssm_a",
    "layers.{}.delta_dt.bias": "blk.{}.ssm_dt.bias",
    "layers.{}.delta_norm.weight": "blk.{}.ssm_norm.weight",
    "layers.{}.delta_o.weight": "blk.{}.ssm_out.weight",
}


@register
class Qwen3NextGguf(GgufSchema):
    """`qwen3next`. Older files have queries, keys, values and gates of a delta net fused into one tensor."""

    names = ("qwen3next",)
    architecture = Qwen3Next
    keys = gguf_keys(
        *DELTA_NET_GGUF_KEYS, ATTENTION_INTERVAL_KEY, *gguf_expert_keys("count", "used", "ffn", "shared_ffn")
    )
    constants = {"experts.shared_gate": True, "experts.renormalize": True}
    tensors = {
        **DECODER_TENSORS,
        **POST_ATTENTION_AS_FFN_NORM,
        **HEAD_NORM_TENSORS,
        **GATED_QUERY_TENSORS,
        **DELTA_NET_TENSORS,
        "layers.{}.delta_qkv.weight": (
            "blk.{}.attn_qkv.weight",
            StoredAs("blk.{}.ssm_in.weight", TakeRows(QKV_ROWS)),
        ),
        "layers.{}.delta_z.weight": ("blk.{}.attn_gate.weight", StoredAs("blk.{}.ssm_in.weight", TakeRows(Z_ROWS))),
        **{
            f"layers.{{}}.delta_{name}.weight": StoredAs("blk.{}.ssm_ba.weight", TakeRows(rows))
            for name, rows in BETA_ALPHA_ROWS.items()
        },
        **expert_tensors(has_fused=True),
        **SHARED_EXPERT_TENSORS,
        **SHARED_GATE_TENSORS,
    }
    allows_partial_rotary = True
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Qwen3NextConfig)
        return with_delta_net_layers(config, gguf.values, is_gguf=True)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Qwen3NextConfig)
        return recurrent_layers_metadata(config, self.names[0])

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_unsupported_routing(config, renormalize=True)
