"""GGUF files of DeciLM and Llama-Nemotron."""

from sporelm.checkpoints.config_keys import gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, PERMUTED_QK_TENSORS
from sporelm.checkpoints.per_layer_shapes import layer_shapes_metadata, with_gguf_lists, with_layer_shapes
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.deci import Deci
from sporelm.models.config import ModelConfig
from sporelm.models.layer_shapes import LayerShapesConfig


@register
class DeciGguf(GgufSchema):
    """`deci`. Queries and keys are permuted; a linear layer in place of attention has the name of its output
    projection."""

    names = ("deci",)
    architecture = Deci
    keys = gguf_keys(without=("window",))
    tensors = {
        **DECODER_TENSORS,
        **PERMUTED_QK_TENSORS,
        "layers.{}.attn_linear.weight": "blk.{}.attn_output.weight",
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> LayerShapesConfig:
        values = with_gguf_lists(gguf.values if values is None else values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, LayerShapesConfig)
        return with_layer_shapes(config, values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, LayerShapesConfig)
        return layer_shapes_metadata(config, self.names[0])
