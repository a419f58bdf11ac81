"""GGUF files of ModernBERT's decoders. Only this engine writes them."""

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.encoder_keys import GGUF_LAYER_NORM_EPS
from sporelm.checkpoints.gguf.modern_bert import FULL_STEP, LOCAL_THETA, MODERN_BERT_TENSORS, first_of_each
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.modern_bert_decoder import ModernBertDecoder


@register
class ModernBertDecoderGguf(GgufSchema):
    """`modern-bert-decoder`."""

    names = ("modern-bert-decoder",)
    architecture = ModernBertDecoder
    keys = gguf_keys(
        GGUF_LAYER_NORM_EPS,
        Key("local_theta", "rope.freq_base_swa", "f32", 1.0, MAX_THETA, LOCAL_THETA),
        Key("has_decoder_bias", "", "bool", tensor="output.bias"),
        without=("head_dim", "kv_heads"),
    )
    tensors = {
        **MODERN_BERT_TENSORS,
        **{f"layers.{{}}.attn_{name}.weight": f"blk.{{}}.attn_{name}.weight" for name in "qkv"},
        "output.weight": "output.weight",
        "embedding.bias": "output.bias",
        "output.bias": "output.bias",
        "output_dense.weight": "cls.weight",
        "output_dense_norm.weight": "cls.norm.weight",
    }
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each(FULL_STEP, layers)
