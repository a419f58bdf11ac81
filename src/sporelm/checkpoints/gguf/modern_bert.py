"""GGUF files of ModernBERT."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.encoder_schema import EncoderGgufSchema
from sporelm.checkpoints.gguf_schema import WINDOW_PATTERN, GgufModel
from sporelm.checkpoints.gguf_tensors import FUSED_GATE_UP_TENSORS, FUSED_QKV_TENSORS
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.modern_bert import ModernBert
from sporelm.models.config import MAX_LAYERS
from sporelm.models.encoder_config import EncoderConfig

FULL_STEP: Final = 3  # the first of each three layers has no window
LOCAL_THETA: Final = 10000.0
HEAD_POOLING_KEY: Final = Key(
    "head_pooling", "classifier.pooling_type", "u32", default="mean", choices=("", "mean", "cls")
)
# Neither attention nor the feed-forward block has biases.
MODERN_BERT_TENSORS: Final[TensorTable] = {
    "embedding.weight": "token_embd.weight",
    "embedding_norm.weight": "token_embd_norm.weight",
    "output_norm.weight": "output_norm.weight",
    "layers.{}.attn_norm.weight": "blk.{}.attn_norm.weight",
    **{name: row for name, row in FUSED_QKV_TENSORS.items() if name.endswith("weight")},
    "layers.{}.attn_o.weight": "blk.{}.attn_output.weight",
    "layers.{}.ffn_norm.weight": "blk.{}.ffn_norm.weight",
    **FUSED_GATE_UP_TENSORS,
    "layers.{}.ffn_down.weight": "blk.{}.ffn_down.weight",
}


def first_of_each(step: int, layers: int) -> frozenset[int]:
    """Return the first of each `step` layers."""
    return frozenset(range(0, layers, step))


@register
class ModernBertGguf(EncoderGgufSchema):
    """`modern-bert`."""

    names = ("modern-bert",)
    architecture = ModernBert
    keys = gguf_keys(
        GGUF_LAYER_NORM_EPS,
        Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, LOCAL_THETA),
        HEAD_POOLING_KEY,
        without=("head_dim", "kv_heads"),
    )
    tensors = {
        **MODERN_BERT_TENSORS,
        "classifier_dense.weight": "cls.weight",
        "classifier_norm.weight": "cls.norm.weight",
        "classifier.weight": "cls.output.weight",
        "classifier.bias": "cls.output.bias",
    }

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each(FULL_STEP, layers)

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> EncoderConfig:
        config = super().config_from_metadata(gguf, values)
        step = gguf.values.integer(WINDOW_PATTERN, 1, MAX_LAYERS, FULL_STEP)
        activation = gguf.values.get("hidden_activation", "gelu")
        if activation != "gelu":
            what = f"modern-bert.hidden_activation {activation!r:.40}"
            raise UnsupportedModel(f"{config.name}: {what} is not supported; gelu is")
        return replace(config, full_layers=first_of_each(step, config.layers))
