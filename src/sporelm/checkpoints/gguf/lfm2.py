"""GGUF files of LFM2."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema, MetadataEntry
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.hybrid_layers import kv_heads_metadata, with_types_by_kv_heads
from sporelm.checkpoints.lfm2_layers import CONV_ROWS, with_attention_layers
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.models.architectures.lfm2 import Lfm2, Lfm2Config
from sporelm.models.config import MAX_CONV_KERNEL, ModelConfig

LFM2_GGUF_KEYS: Final = (
    Key("conv_kernel", "shortconv.l_cache", "u32", 2, MAX_CONV_KERNEL),
    Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
)
LFM2_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **HEAD_NORM_TENSORS,
    "output_norm.weight": "token_embd_norm.weight",
    **{
        f"layers.{{}}.conv_{name}.weight": StoredAs("blk.{}.shortconv.in_proj.weight", TakeRows(rows))
        for name, rows in CONV_ROWS.items()
    },
    "layers.{}.conv_o.weight": "blk.{}.shortconv.out_proj.weight",
    "layers.{}.short_conv.weight": StoredAs("blk.{}.shortconv.conv.weight", Transpose()),
}


@register
class Lfm2Gguf(GgufSchema):
    """`lfm2`."""

    names: tuple[str, ...] = ("lfm2",)
    architecture = Lfm2
    keys = gguf_keys(*LFM2_GGUF_KEYS)
    tensors = LFM2_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        values = with_types_by_kv_heads(gguf.values)
        config = super().config_from_metadata(gguf, values)
        assert isinstance(config, Lfm2Config)
        return with_attention_layers(config, values)

    def extra_metadata(self, config: ModelConfig) -> dict[str, MetadataEntry]:
        assert isinstance(config, Lfm2Config)
        return kv_heads_metadata(config, self.names[0], config.attention_layers)
