"""The base class of the schemas of GGUF files in `checkpoints.gguf`.

Keys: the GGUF specification, section "LLM", and llama.cpp's llama-arch.cpp.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sporelm.checkpoints.config_keys import GGUF_SHAPE, Key, find_key, get_attribute
from sporelm.checkpoints.config_records import (
    MIN_EPS,
    NO_ATTENTION,
    ConfigRecords,
    check_direction,
    read_head_dim,
    read_rotary_width,
)
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.dense import fits_gguf
from sporelm.checkpoints.pooling import GGUF_POOLINGS, read_gguf_pooling
from sporelm.checkpoints.rope_fields import MAX_CONTEXT, rope_from_gguf
from sporelm.checkpoints.tensor_names import GGUF, split_layer_number
from sporelm.checkpoints.tensor_schema import TensorSchema
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architecture_registry import Architecture
from sporelm.models.config import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    ModelConfig,
)
from sporelm.models.rope_scaling import YarnScaling

WINDOW_PATTERN = "attention.sliding_window_pattern"  # list of booleans: whether each layer has a window
BIAS_TENSORS = {"attention_bias": "attn_q", "attention_out_bias": "attn_o", "mlp_bias": "ffn_down"}
MetadataEntry = tuple[str, Any]  # type and value


@dataclass(frozen=True)
class GgufModel:
    """The metadata and tensor shapes of a GGUF file, before any tensor is read.

    metadata      all of it
    shapes        of the tensors, by name
    rope_factors  values of the tensors that divide rotary frequencies, by name
    dtype         the number format of most weights
    """

    metadata: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    where: str
    rope_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    dtype: str = "F32"

    @cached_property
    def architecture(self) -> str:
        """`general.architecture`. Raises ModelFileError if it is missing."""
        return ConfigValues(self.metadata, self.where).text("general.architecture")

    @cached_property
    def values(self) -> ConfigValues:
        """The metadata of the architecture, keys without the architecture prefix."""
        prefix = f"{self.architecture}."
        found = {key.removeprefix(prefix): value for key, value in self.metadata.items() if key.startswith(prefix)}
        return ConfigValues(found, self.where)

    @cached_property
    def templates(self) -> Set[str]:
        """The names of the tensors with `{}` in place of the layer number."""
        return {split_layer_number(name)[0] for name in self.shapes}


class GgufSchema(TensorSchema):
    """GGUF files of one architecture. A schema overrides the attributes and methods in which its files differ.

    names                     values of `general.architecture`; the first is written
    mixture_name              `general.architecture` of mixtures of experts, if it differs
    keys                      of the metadata, in the order in which they are written
    constants                 attributes that all models share; for one with a key, the default of the key
    has_attention             its layers have attention heads and feed-forward blocks
    allows_partial_rotary     files may rotate only the first dimensions of a head
    has_window_pattern        files list the layers that have a window
    llama_cpp_has_window      llama.cpp reads the sliding window of this architecture
    yarn_truncates            the ends of YaRN's ramp are rounded; the files have no key for it
    has_dense_modules         files hold the two matrices of Dense modules
    """

    kind = GGUF
    names: tuple[str, ...]
    mixture_name: str = ""
    architecture: type[Architecture]
    keys: tuple[Key, ...] = GGUF_SHAPE
    constants: Mapping[str, Any] = {}
    has_attention: bool = True
    allows_partial_rotary: bool = False
    has_window_pattern: bool = False
    llama_cpp_has_window: bool = True
    yarn_truncates: bool = True
    has_dense_modules: bool = False

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        """Return the layers without a window in a file that has a window and does not list its layers."""
        return frozenset()

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        """Return the configuration of a file.

        values   the metadata of the architecture, if a schema has normalized it

        Raises ModelFileError for a missing or impossible value, UnsupportedModel for an option that is not supported
        and would change the result.
        """
        values = gguf.values if values is None else values
        width = values.integer("embedding_length", 1, MAX_WIDTH)
        heads = _read_heads(values, width) if self.has_attention else dict(NO_ATTENTION)
        context_length = values.integer("context_length", 1, MAX_CONTEXT)
        layers = values.integer("block_count", 1, MAX_LAYERS)
        if self.has_mtp_layers:
            layers -= values.integer("nextn_predict_layers", 0, layers - 1, 0)
        embedding = gguf.shapes.get("token_embd.weight", ())
        biases = {
            attribute: bool(self.stored_templates(f"layers.{{}}.{tensor}.bias") & gguf.templates)
            for attribute, tensor in BIAS_TENSORS.items()
        }
        records = ConfigRecords(self.constants)
        for key in self.keys:
            if key.tensor:
                records.set(key.attribute, bool(self.stored_templates(key.tensor) & gguf.templates))
            else:
                records.read(key, values, is_gguf=True)
        rotary = self._read_rotary(values, gguf.rope_factors, heads["head_dim"], context_length)
        config = records.build(
            self.architecture.config_class,
            name=ConfigValues(gguf.metadata, gguf.where).name("general.name", gguf.architecture),
            architecture=gguf.architecture,
            model=self.architecture.name,
            layers=layers,
            width=width,
            vocab=embedding[0] if len(embedding) == 2 else values.integer("vocab_size", 1, MAX_VOCAB),
            eps=values.number(find_key(self.keys, "eps"), MIN_EPS, 1.0),
            window=_read_window(values) if find_key(self.keys, "window") else None,
            full_layers=self._read_full_layers(values, layers),
            tie_embeddings="output.weight" not in gguf.shapes,
            pooling=read_gguf_pooling(values),
            dtype=gguf.dtype,
            **{**heads, **rotary, **biases},
        )
        check_direction(self.architecture, values, "attention.causal", self.names[0])
        if config.experts is not None and not config.experts.scale:  # llama.cpp treats 0 as absent
            config = replace(config, experts=replace(config.experts, scale=1.0))
        return config

    def metadata_from_config(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        """Return the metadata of a file under its full keys, without rotary positions and `extra_metadata`."""
        prefix = f"{self.name_for(config)}."
        found: dict[str, MetadataEntry] = {}
        if self.has_unusual_windows(config):
            pattern = [config.window_of(layer) is not None for layer in range(config.layers)]
            found[f"{prefix}{WINDOW_PATTERN}"] = "[bool]", pattern
        window = None if len(config.full_layers) == config.layers else config.window
        for key in self.keys:
            value = window if key.attribute == "window" else get_attribute(config, key.attribute)
            if value is not None and key.key:
                found[f"{prefix}{key.key}"] = key.type, key.encode(value)
        if config.pooling:
            found[f"{prefix}pooling_type"] = "u32", GGUF_POOLINGS.index(config.pooling)
        return found

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        """Return metadata that no key covers, under its full keys."""
        return {}

    def find_unsupported(self, config: ModelConfig) -> str:
        """Return the property of a configuration that files of this architecture cannot hold, as a clause; "" if they
        can hold all."""
        return ""

    def find_conversion_loss(self, config: ModelConfig) -> str:
        """Return the property of a configuration that a GGUF file would lose, Dense modules and windows included, as a
        clause; "" if none."""
        lost = self.find_unsupported(config)
        if config.dense and not (self.has_dense_modules and fits_gguf(config.dense, config.width)):
            lost = "its vectors go through Dense modules"
        if self.has_unusual_windows(config) and not self.has_window_pattern:
            lost = "some of its layers have a window and some have none (layer_types)"
        return lost

    def name_for(self, config: ModelConfig) -> str:
        """Return `general.architecture` for a configuration."""
        return self.mixture_name if self.mixture_name and config.experts else self.names[0]

    def has_unusual_windows(self, config: ModelConfig) -> bool:
        """Return whether the layers with a window differ from the layers that a file implies without a list."""
        usual = self.full_attention_layers(config.layers)
        has_some = 0 < len(config.full_layers) < config.layers or bool(usual)
        return config.window is not None and has_some and config.full_layers != usual

    def _read_rotary(
        self,
        values: ConfigValues,
        rope_factors: Mapping[str, tuple[float, ...]],
        head_dim: int,
        context_length: int,
    ) -> dict[str, Any]:
        if self.constants.get("rotary") == 0:
            return {"rope_theta": 0.0, "context_length": context_length}
        rotary = values.integer("rope.dimension_count", 1, MAX_HEAD_DIM, head_dim)
        if rotary != head_dim and not self.allows_partial_rotary:
            raise UnsupportedModel(
                f"{values.where}: {self.names[0]}.rope.dimension_count {rotary} is not supported; {head_dim} is"
            )
        width = read_rotary_width(rotary, head_dim, values.where)
        rope = rope_from_gguf(values, rope_factors, width, context_length)
        scaling = rope.scaling
        if isinstance(scaling, YarnScaling):
            scaling = replace(scaling, truncate=self.yarn_truncates)
        found = {"rope_theta": rope.theta, "rope_scaling": scaling, "rotary": rotary}
        return {**found, "context_length": rope.context_length}

    def _read_full_layers(self, values: ConfigValues, layers: int) -> frozenset[int]:
        pattern, usual = values.get(WINDOW_PATTERN), self.full_attention_layers(layers)
        if not self.has_window_pattern or pattern is None:
            return usual
        if type(pattern) is int and frozenset(range(pattern - 1, layers, max(pattern, 1))) == usual:  # older files
            return usual
        if not isinstance(pattern, Sequence | np.ndarray) or isinstance(pattern, str):
            what = f"{WINDOW_PATTERN} is {format_value(pattern)}"
            raise ModelFileError(f"{values.where}: {what}; it must be a boolean for each layer")
        if len(pattern) != layers or not all(isinstance(each, bool | int | np.bool_ | np.integer) for each in pattern):
            what = f"{WINDOW_PATTERN} must be a list of booleans for the {layers} layers"
            raise ModelFileError(f"{values.where}: {what}; it is {format_value(list(pattern[:8]))}")
        return frozenset(layer for layer, has_window in enumerate(pattern) if not has_window)


def _read_heads(values: ConfigValues, width: int) -> dict[str, int]:
    """Return the shape of attention heads and of the feed-forward block."""
    heads = _read_per_layer(values, "attention.head_count")
    head_dim = read_head_dim(values, "attention.key_length", width, heads, ("embedding_length", "attention.head_count"))
    if values.integer("attention.value_length", 1, MAX_HEAD_DIM, head_dim) != head_dim:
        raise UnsupportedModel(f"{values.where}: attention.value_length must equal attention.key_length {head_dim}")
    kv_heads = _read_per_layer(values, "attention.head_count_kv", heads)
    ffn = _read_per_layer(values, "feed_forward_length", high=MAX_WIDTH)
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "ffn": ffn}


def _read_window(values: ConfigValues) -> int | None:
    """Return the window in positions; 0 means no window."""
    return values.integer("attention.sliding_window", 0, MAX_CONTEXT, 0) or None


def _read_per_layer(values: ConfigValues, key: str, default: int | None = None, high: int = MAX_HEADS) -> int:
    """Return a number that files may store once or for each layer. Raises UnsupportedModel if layers differ."""
    value = values.get(key)
    if value is not None and not isinstance(value, int | float | str | bool):
        if len(value) > MAX_LAYERS:
            raise ModelFileError(f"{values.where}: {key} has {len(value)} values; at most {MAX_LAYERS} are allowed")
        items = value.tolist() if hasattr(value, "tolist") else list(value)
        if any(not isinstance(item, int | float | str | bool) for item in items):
            raise ModelFileError(
                f"{values.where}: {key} is {format_value(items)}; it must be one number for each layer"
            )
        if not items or any(item != items[0] for item in items):
            raise UnsupportedModel(
                f"{values.where}: {key} differs between layers, which is not supported (got {format_value(items)})"
            )
        return ConfigValues({key: items[0]}, values.where).integer(key, 1, high)
    return values.integer(key, 1, high, default)
