"""GGUF files of PLaMo 2."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    DECODER_TENSORS,
    FUSED_GATE_UP_TENSORS,
    FUSED_QKV_TENSORS,
    HEAD_NORM_TENSORS,
)
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, read_attention_layers, with_types_by_kv_heads
from sporelm.checkpoints.row_numbers import RowNumbers, rows_of_groups, rows_of_part
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.errors import ModelFileError
from sporelm.models.architectures.plamo2 import Plamo2, Plamo2Config
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, ModelConfig

HEADS: Final = "attention.head_count"
MIN_RANK: Final = 64
PLAMO2_CONSTANTS: Final = {"mamba.num_groups": 1, "mamba.has_conv_bias": False}
# The input projection has, for each head, the rows of the gate and the rows of the convolution.
_GROUPS: Final = (attrgetter("mamba.num_heads"), attrgetter("mamba.head_dim"), attrgetter("mamba.head_dim"))
INPUT_ROWS: Final[Mapping[str, RowNumbers]] = {
    "z": rows_of_groups((0,), *_GROUPS),
    "x": rows_of_groups((1,), *_GROUPS),
}
# Rows of the projection after the convolution: B, C and the input of time steps.
_SIZES: Final = (attrgetter("mamba.state_size"), attrgetter("mamba.state_size"), attrgetter("mamba.time_step_rank"))
CONVOLVED_ROWS: Final[Mapping[str, RowNumbers]] = {
    name: rows_of_part(number, *_SIZES) for number, name in enumerate(("write", "read", "rank"))
}
# Tensors that PLaMo 3 shares.
PLAMO_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **FUSED_QKV_TENSORS,
    **HEAD_NORM_TENSORS,
    **FUSED_GATE_UP_TENSORS,
    "layers.{}.attn_post_norm.weight": "blk.{}.post_attention_norm",
    "layers.{}.ffn_post_norm.weight": "blk.{}.post_ffw_norm",
}


def with_time_step_rank(config: Plamo2Config) -> Plamo2Config:
    """Return the configuration with the rank of time steps, which files do not contain."""
    return replace(config, mamba=replace(config.mamba, time_step_rank=max(MIN_RANK, config.width // 16)))


@register
class Plamo2Gguf(GgufSchema):
    """`plamo2`. Layers without attention have 0 heads."""

    names = ("plamo2",)
    architecture = Plamo2
    keys = gguf_keys(
        Key("head_dim", "attention.key_length", "u32"),
        Key("head_dim", "attention.value_length", "u32"),
        Key("mamba.conv_kernel", "ssm.conv_kernel", "u32", 2, MAX_CONV_KERNEL),
        Key("mamba.num_heads", "ssm.time_step_rank", "u32", 1, MAX_HEADS),
        Key("mamba.state_size", "ssm.state_size", "u32", 1, MAX_HEAD_DIM),
        Key("mamba.inner_size", "ssm.inner_size", "u32", 1, MAX_WIDTH),
    )
    constants = PLAMO2_CONSTANTS
    tensors = {
        **PLAMO_TENSORS,
        **{
            f"layers.{{}}.ssm_{name}.weight": StoredAs(f"blk.{{}}.{stored}.weight", TakeRows(rows))
            for stored, parts in (("ssm_in", INPUT_ROWS), ("ssm_x", CONVOLVED_ROWS))
            for name, rows in parts.items()
        },
        "layers.{}.ssm_write_norm.weight": "blk.{}.ssm_b_norm",
        "layers.{}.ssm_read_norm.weight": "blk.{}.ssm_c_norm",
        "layers.{}.ssm_rank_norm.weight": "blk.{}.ssm_dt_norm",
        "layers.{}.ssm_dt.weight": "blk.{}.ssm_dt.weight",
        "layers.{}.ssm_dt.bias": "blk.{}.ssm_dt.bias",
        "layers.{}.ssm_o.weight": "blk.{}.ssm_out.weight",
        "layers.{}.ssm_conv.weight": StoredAs("blk.{}.ssm_conv1d.weight", Transpose()),
        "layers.{}.ssm.decay": "blk.{}.ssm_a",
        "layers.{}.ssm.skip": "blk.{}.ssm_d",
    }
    has_window_pattern = True
    llama_cpp_has_window = False

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(_with_one_head_count(gguf.values))
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Plamo2Config)
        mamba = replace(config.mamba, head_dim=config.mamba.inner_size // config.mamba.num_heads)
        kinds = values.get("layer_types") or ["attention"] * config.layers
        attention_layers = read_attention_layers(values, kinds, config.layers)
        if mamba.inner_size != mamba.num_heads * mamba.head_dim:
            what = f"inner size {mamba.inner_size} is not a multiple of {mamba.num_heads} heads"
            raise ModelFileError(f"{values.where}: {what}")
        return with_time_step_rank(replace(config, mamba=mamba, attention_layers=attention_layers))

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Plamo2Config)
        return kv_heads_metadata(config, "plamo2", config.attention_layers) | {"plamo2.ssm.group_count": ("u32", 0)}


def _with_one_head_count(values: ConfigValues) -> ConfigValues:
    """Return metadata with the number of query heads of attention layers."""
    value = values.get(HEADS)
    counts = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        return values
    return values.with_changes({HEADS: max(counts, default=0)})
