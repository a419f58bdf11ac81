"""GGUF files of MiMo-V2-Flash."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys, with_experts_where_routers_are
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import CHOICE_BIAS_TENSORS, DECODER_TENSORS, expert_tensors
from sporelm.checkpoints.rope_fields import MAX_FACTOR, MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.mimo2 import Mimo2, Mimo2Config
from sporelm.models.config import ModelConfig

FULL_LAYER_STEP: Final = 6  # interval of layers without a window, after the first one
KV_HEADS: Final = "attention.head_count_kv"
KEY_LENGTH: Final = "attention.key_length"
VALUE_LENGTH: Final = "attention.value_length"
VALUE_HEAD_DIM: Final = "value_head_dim"  # our key for the width of values
VALUE_SCALE_KEY: Final = Key("value_scale", "attention.value_scale", "f32", 0, MAX_FACTOR, 1.0)
LOCAL_THETA_KEY: Final = Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, 10000.0)
MIMO2_ROUTING: Final = {**V3_ROUTING, "experts.renormalize": True}


def first_and_every_sixth_layer(layers: int) -> frozenset[int]:
    """Return the layers without a window in a file that does not list them."""
    return frozenset({0, *range(FULL_LAYER_STEP - 1, layers, FULL_LAYER_STEP)})


def with_kv_heads_of_full_layers(values: ConfigValues) -> ConfigValues:
    """Return the metadata with the KV heads of layers without a window as one number, without the entries of MTP
    layers, and with the width of values under a key of ours. Raises UnsupportedModel unless layers with a window have
    twice as many heads."""
    values = values.with_changes({VALUE_LENGTH: values.get(KEY_LENGTH), VALUE_HEAD_DIM: values.get(VALUE_LENGTH)})
    given: list[Any] = [values.get(KV_HEADS), values.get(WINDOW_PATTERN)]
    lists = [each.tolist() if hasattr(each, "tolist") else each for each in given]
    if not all(isinstance(each, list) and all(isinstance(item, int) for item in each) for each in lists):
        return values
    mtp_layers = values.get("nextn_predict_layers")
    layers = len(lists[1]) - (mtp_layers if isinstance(mtp_layers, int) else 0)
    heads, pattern = (each[:layers] for each in lists)
    full, local = (
        {count for count, mark in zip(heads, pattern, strict=False) if bool(mark) is has_window}
        for has_window in (False, True)
    )
    full_heads = full.pop() if len(full) == 1 else None
    local_heads = local.pop() if len(local) == 1 else None
    if not isinstance(full_heads, int) or local_heads != 2 * full_heads:
        what = f"{KV_HEADS} is {format_value(heads)}; layers with a window must have twice the heads of the others"
        raise UnsupportedModel(f"{values.where}: {what}")
    return values.with_changes({KV_HEADS: full_heads, WINDOW_PATTERN: pattern})


@register
class Mimo2Gguf(GgufSchema):
    """`mimo2`. Layers with a router have experts."""

    names = ("mimo2",)
    architecture = Mimo2
    keys = gguf_keys(
        VALUE_SCALE_KEY, LOCAL_THETA_KEY, *gguf_expert_keys("count", "used", "ffn", "groups", "top_groups")
    )
    constants = MIMO2_ROUTING
    tensors = {
        **DECODER_TENSORS,
        **expert_tensors(),
        **CHOICE_BIAS_TENSORS,
        "layers.{}.attn_sinks.weight": "blk.{}.attn_sinks.weight",
    }
    ignored_tensors = ("model.mtp.*",)
    allows_partial_rotary = True
    has_window_pattern = True
    has_mtp_layers = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_and_every_sixth_layer(layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> Mimo2Config:
        values = with_kv_heads_of_full_layers(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Mimo2Config)
        value_head_dim = values.integer(VALUE_HEAD_DIM, 1, config.head_dim, config.head_dim)
        return with_experts_where_routers_are(replace(config, value_head_dim=value_head_dim), gguf.shapes)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Mimo2Config)
        layers, name = range(config.layers), self.names[0]
        return {
            f"{name}.{KV_HEADS}": ("[u32]", [config.for_layer(layer).kv_heads for layer in layers]),
            f"{name}.{VALUE_LENGTH}": ("u32", config.value_head_dim),
            f"{name}.{WINDOW_PATTERN}": ("[bool]", [config.window_of(layer) is not None for layer in layers]),
        }

    def find_unsupported(self, config: ModelConfig) -> str:
        experts = config.experts
        if experts and not experts.renormalize:
            return "the weights of its experts are not renormalized"
        return "the weights of its experts are scaled" if experts and experts.scale != 1 else ""
