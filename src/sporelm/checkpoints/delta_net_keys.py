"""Keys and tensors of gated delta nets that schemas share, and the choice of delta net layers.

GGUF keys and tensors: llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of transformers.
"""

from dataclasses import replace
from typing import Any, Final, TypeVar

from sporelm.checkpoints.config_keys import Key
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import MetadataEntry
from sporelm.checkpoints.hybrid_layers import read_attention_layers
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import Squeeze, Transpose
from sporelm.errors import ModelFileError
from sporelm.models.architectures.qwen3next import Qwen3NextConfig
from sporelm.models.config import MAX_CONV_KERNEL, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ModelConfig
from sporelm.models.linear_attention_config import LinearAttentionConfig

LAYER_TYPES: Final = ("linear_attention", "full_attention")  # of config.json
GGUF_RECURRENT_LAYERS: Final = "attention.recurrent_layers"  # of each layer: whether it is a delta net

DELTA_NET_GGUF_KEYS: Final = (
    Key("delta_net.conv_kernel", "ssm.conv_kernel", "u32", 2, MAX_CONV_KERNEL),
    Key("delta_net.key_head_dim", "ssm.state_size", "u32", 1, MAX_HEAD_DIM),
    Key("delta_net.num_key_heads", "ssm.group_count", "u32", 1, MAX_HEADS),
    Key("delta_net.num_value_heads", "ssm.time_step_rank", "u32", 1, MAX_HEADS),
    Key("delta_net.inner_size", "ssm.inner_size", "u32", 1, MAX_WIDTH),
)
DELTA_NET_HF_KEYS: Final = (
    Key("delta_net.conv_kernel", "linear_conv_kernel_dim", "u32", 2, MAX_CONV_KERNEL),
    Key("delta_net.key_head_dim", "linear_key_head_dim", "u32", 1, MAX_HEAD_DIM),
    Key("delta_net.num_key_heads", "linear_num_key_heads", "u32", 1, MAX_HEADS),
    Key("delta_net.num_value_heads", "linear_num_value_heads", "u32", 1, MAX_HEADS),
    Key("delta_net.value_head_dim", "linear_value_head_dim", "u32", 1, MAX_HEAD_DIM),
)
ATTENTION_INTERVAL_KEY: Final = Key("full_attention_interval", "full_attention_interval", "u32", 1, MAX_LAYERS, 4)
# Convolutions of queries, keys and values that are three tensors. GGUF files may have two more axes of length 1.
SPLIT_CONV_GGUF_TENSORS: Final[TensorTable] = {
    f"layers.{{}}.delta_{name}_conv.weight": StoredAs(
        f"blk.{{}}.ssm_conv1d_{name}.weight", Squeeze((1,), to_four=True), Transpose()
    )
    for name in "qkv"
}
Config = TypeVar("Config", bound=Qwen3NextConfig)


def split_conv_tensors(block: str) -> TensorTable:
    """Return the convolutions of queries, keys and values that a folder stores as three tensors.

    block   prefix of their names
    """
    return {
        f"layers.{{}}.delta_{name}_conv.weight": StoredAs(
            f"{block}{name}_conv1d.weight", Squeeze((1,), to_four=True), Transpose()
        )
        for name in "qkv"
    }


def as_delta_net_config(config: ModelConfig) -> Qwen3NextConfig:
    """Return the configuration of a model with delta nets, with its type narrowed."""
    assert isinstance(config, Qwen3NextConfig)
    return config


def attention_at_interval(config: LinearAttentionConfig) -> frozenset[int]:
    """Return the attention layers of a file that does not list them: the last one of each interval."""
    interval = config.full_attention_interval
    return frozenset(range(interval - 1, config.layers, interval))


def read_recurrent_layers(config: LinearAttentionConfig, values: ConfigValues) -> frozenset[int]:
    """Return the attention layers by GGUF metadata."""
    flags = values.get(GGUF_RECURRENT_LAYERS)
    if flags is None:
        return attention_at_interval(config)
    return read_attention_layers(values, flags, config.layers, are_flags=True)


def with_delta_net_layers(config: Config, values: ConfigValues, *, is_gguf: bool) -> Config:
    """Return the configuration with the attention layers and with the value width that follows from the number of
    heads. Raises ModelFileError for heads that do not divide evenly."""
    shape = config.delta_net
    inner_size = shape.inner_size or shape.num_value_heads * shape.value_head_dim
    if shape.num_value_heads % shape.num_key_heads or inner_size % shape.num_value_heads:
        what = f"{shape.num_value_heads} heads of {inner_size} values, {shape.num_key_heads} heads of keys"
        keys = values.list_keys("linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim")
        raise ModelFileError(f"{values.where}: {what}: these do not divide evenly{keys}")
    if is_gguf:
        attention_layers = read_recurrent_layers(config, values)
    elif (layer_types := values.get("layer_types")) is None:
        attention_layers = attention_at_interval(config)
    else:
        attention_layers = read_attention_layers(values, layer_types, config.layers)
    shape = replace(shape, inner_size=inner_size, value_head_dim=inner_size // shape.num_value_heads)
    return replace(config, delta_net=shape, attention_layers=attention_layers)


def recurrent_layers_metadata(config: LinearAttentionConfig, name: str) -> dict[str, MetadataEntry]:
    """Return GGUF metadata of the architecture `name` that lists the delta nets, unless they are at the interval."""
    if config.attention_layers == attention_at_interval(config):
        return {}
    flags = [layer not in config.attention_layers for layer in range(config.layers)]
    return {f"{name}.{GGUF_RECURRENT_LAYERS}": ("[bool]", flags)}


def layer_types_json(layers: int, attention_layers: frozenset[int]) -> dict[str, Any]:
    """Return `layer_types` of config.json."""
    return {"layer_types": [LAYER_TYPES[layer in attention_layers] for layer in range(layers)]}
