"""GGUF files of Nemotron-H and Nemotron 3."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import OPTIONAL, Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import V3_ROUTING, gguf_expert_keys
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import (
    ATTENTION_TENSORS,
    CHOICE_BIAS_TENSORS,
    EMBEDDING_TENSORS,
    PARTS,
    PERMUTED_QK_TENSORS,
    expert_tensors,
)
from sporelm.checkpoints.mamba_keys import (
    MAMBA2_GGUF_KEYS,
    MAMBA2_GGUF_TENSORS,
    find_time_step_limits,
    with_gguf_mamba2_sizes,
)
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.nemotron_h import ATTENTION, DENSE, MAMBA, MOE, NemotronH, NemotronHConfig
from sporelm.models.config import MAX_WIDTH, ModelConfig

KV_HEADS: Final = "attention.head_count_kv"
FFN: Final = "feed_forward_length"
RMS_EPS: Final = "attention.layer_norm_rms_epsilon"
LAYER_NORM_EPS: Final = "attention.layer_norm_epsilon"  # llama.cpp requires it
NEMOTRON_H_CONSTANTS: Final = {"rotary": 0, "experts.plain": "relu_squared", **V3_ROUTING}
LATENT_KEY: Final = Key("experts.latent", "moe_latent_size", "u32", 0, MAX_WIDTH, OPTIONAL)


def with_types_by_lengths(values: ConfigValues) -> ConfigValues:
    """Return metadata with the types of layers, and one number of KV heads and one width for all layers. In a file
    Mamba layers have 0 of both, attention layers have KV heads, and feed-forward blocks a width."""
    values = values.with_values({RMS_EPS: values.get(LAYER_NORM_EPS), **values.values})
    lengths = {}
    for key in (KV_HEADS, FFN):
        value = values.get(key)
        numbers = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(numbers, list) or not all(type(each) is int for each in numbers):
            return values
        lengths[key] = numbers
    experts = values.get("expert_count")
    block = MOE if type(experts) is int and experts > 0 else DENSE
    pairs = zip(lengths[KV_HEADS], lengths[FFN], strict=False)
    kinds = [block if width else ATTENTION if heads else MAMBA for heads, width in pairs]
    largest = {key: max(numbers, default=0) or 1 for key, numbers in lengths.items()}
    return values.with_changes({"layers_block_type": kinds, **largest})


def with_layer_types(config: NemotronHConfig, values: ConfigValues) -> NemotronHConfig:
    """Return the configuration with the types of layers in `layers_block_type`. Raises UnsupportedModel for other types
    and for unsupported Mamba mixers, ModelFileError for experts without a number."""
    if reason := find_time_step_limits(config):
        raise UnsupportedModel(f"{values.where}: {reason}, which is not supported")
    given: Any = values.get("layers_block_type")
    kinds = tuple(given[: config.layers]) if isinstance(given, list) else ()
    if len(kinds) < config.layers or any(each not in (MAMBA, ATTENTION, MOE, DENSE) for each in kinds):
        what = f"each of the {config.layers} layers must be {MAMBA}, {ATTENTION}, {MOE} or {DENSE}"
        raise UnsupportedModel(f"{values.where}: {what}; got {format_value(given)}")
    if MOE in kinds and config.experts is None:
        what = f"layer {kinds.index(MOE)} has experts, but the number of experts is 0"
        raise ModelFileError(f"{values.where}: {what}")
    dense = frozenset(layer for layer, each in enumerate(kinds) if each != MOE)
    experts = replace(config.experts, dense=dense) if config.experts and MOE in kinds else None
    return replace(config, experts=experts, layer_types=kinds)


@register
class NemotronHGguf(GgufSchema):
    """`nemotron_h`, with experts `nemotron_h_moe`. The rows of queries and keys are permuted, although they are not
    rotated."""

    names = ("nemotron_h",)
    mixture_name = "nemotron_h_moe"
    architecture = NemotronH
    keys = gguf_keys(
        *MAMBA2_GGUF_KEYS,
        *gguf_expert_keys(
            *("count", "used", "ffn", "shared", "shared_ffn", "scale", "renormalize", "groups", "top_groups"),
            optional=True,
        ),
        LATENT_KEY,
        Key("mlp_bias", "", "bool", tensor="layers.{}.ffn_down.bias"),
        Key("eps", RMS_EPS, "f32"),
        without=("rotary", "window"),
    )
    constants = NEMOTRON_H_CONSTANTS
    tensors = {
        **EMBEDDING_TENSORS,
        "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight",
        **MAMBA2_GGUF_TENSORS,
        **ATTENTION_TENSORS,
        **PERMUTED_QK_TENSORS,
        **expert_tensors(),
        **CHOICE_BIAS_TENSORS,
        **{
            f"layers.{{}}.ffn_{name}.{part}": f"blk.{{}}.ffn_{name}.{part}"
            for name in ("up", "up_shexp", "down", "down_shexp", "latent_down", "latent_up")
            for part in PARTS
        },
    }
    ignored_tensors = ("mtp.*",)
    has_mtp_layers = True

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_lengths(gguf.values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, NemotronHConfig)
        return with_layer_types(with_gguf_mamba2_sizes(config, values), values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, NemotronHConfig)
        name, kinds = self.name_for(config), config.layer_types
        ffn = config.experts.ffn if config.experts else config.ffn
        return {
            f"{name}.{KV_HEADS}": ("[u32]", [config.kv_heads if kind == ATTENTION else 0 for kind in kinds]),
            f"{name}.{FFN}": ("[u32]", [ffn if kind in (MOE, DENSE) else 0 for kind in kinds]),
            f"{name}.{LAYER_NORM_EPS}": ("f32", config.eps),
        }

    def find_unsupported(self, config: ModelConfig) -> str:
        assert isinstance(config, NemotronHConfig)
        if config.mamba.has_bias:
            return "the projections of its Mamba mixers have biases"
        if config.experts and (DENSE in config.layer_types or config.mlp_bias):
            return "it has experts together with dense layers or biases"
        return ""
