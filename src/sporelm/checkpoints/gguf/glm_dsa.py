"""GGUF files of GLM-5, 5.1 and 5.2."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.deepseek32 import DEEPSEEK32_KEYS, DEEPSEEK32_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, MetadataEntry
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.sparse_keys import SparseGgufSchema, get_indexer
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.glm_dsa import GlmDsa
from sporelm.models.config import ModelConfig
from sporelm.models.latent_config import SparseConfig

INDEXER_TYPES: Final = ("shared", "full")
TYPES_KEY: Final = "attention.indexer.types"
# Context length for which llama.cpp assumes the pattern of GLM-5.2, if the file does not list the types.
LONG_CONTEXT: Final = 1 << 20


def scheduled_types(layers: int, step: int, first: int) -> list[str]:
    """Return the types of layers by `index_topk_freq` and `index_skip_topk_offset`."""
    return [INDEXER_TYPES[max(layer - first + 1, 0) % max(step, 1) == 0] for layer in range(layers)]


def with_shared_layers(config: ModelConfig, types: Any, where: str) -> ModelConfig:
    """Return the configuration with the types of its layers. Raises UnsupportedModel for unknown or missing types, or
    if the first layer has no indexer."""
    assert isinstance(config, SparseConfig)
    is_known = isinstance(types, list) and len(types) == config.layers and all(each in INDEXER_TYPES for each in types)
    if not is_known or types[0] != "full":
        what = f"must be full or shared for each of the {config.layers} layers, and full for the first"
        raise UnsupportedModel(f"{where}: indexer_types {what} (got {format_value(types)})")
    shared = frozenset(layer for layer, each in enumerate(types) if each == "shared")
    return replace(config, indexer=replace(config.indexer, shared_layers=shared))


@register
class GlmDsaGguf(SparseGgufSchema):
    """`glm-dsa`. Files without `types` also have indexer tensors in layers that share a selection."""

    names = ("glm-dsa",)
    architecture = GlmDsa
    keys = DEEPSEEK32_KEYS
    tensors = DEEPSEEK32_TENSORS
    ignored_tensors = ("blk.{}.indexer.*",)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        config = super().config_from_metadata(gguf, values)
        return with_shared_layers(config, _read_types(config, gguf.values), gguf.where)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        shared = get_indexer(config).shared_layers
        types = [layer not in shared for layer in range(config.layers)]
        return {**super().extra_metadata(config), f"glm-dsa.{TYPES_KEY}": ("[bool]", types)}


def _read_types(config: ModelConfig, values: ConfigValues) -> Any:
    types = values.get(TYPES_KEY)
    if types is None:
        return scheduled_types(config.layers, 4 if config.context_length >= LONG_CONTEXT else 1, 3)
    listed = types.tolist() if hasattr(types, "tolist") else types
    if not isinstance(listed, list | tuple):
        return listed
    return [INDEXER_TYPES[bool(each)] for each in listed[: config.layers]]
