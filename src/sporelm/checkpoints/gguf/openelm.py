"""GGUF files of OpenELM."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, FUSED_QKV_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.per_layer_shapes import layer_shapes_metadata, with_gguf_lists, with_layer_shapes
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.openelm import OpenELM
from sporelm.models.config import ModelConfig
from sporelm.models.layer_shapes import LayerShapesConfig


@register
class OpenELMGguf(GgufSchema):
    """`openelm`. Queries, keys and values are fused into one tensor."""

    names = ("openelm",)
    architecture = OpenELM
    keys = gguf_keys(
        Key("layers", "block_count", "u32"),
        Key("width", "embedding_length", "u32"),
        without=("window",),
    )
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith(".weight")},
    }

    def layer_config(self, config: ModelConfig, layer: int) -> ModelConfig:
        assert isinstance(config, LayerShapesConfig)
        return config.for_layer(layer)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> LayerShapesConfig:
        values = with_gguf_lists(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, LayerShapesConfig)
        return with_layer_shapes(config, values, low=1)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, LayerShapesConfig)
        return layer_shapes_metadata(config, self.names[0])
