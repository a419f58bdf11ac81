"""Hugging Face folders of BLOOM."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.bloom import BLOOM_CONSTANTS
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, fused_qkv_tensors
from sporelm.checkpoints.row_numbers import QKV_ROWS_BY_KV_HEAD
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.bloom import Bloom
from sporelm.models.config import ModelConfig

LAYER: Final = "transformer.h.{}."
# Parameters -> stored names, both without ".weight" and ".bias".
NORMS_AND_PRODUCTS: Final = {
    "embedding_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "layers.{}.attn_norm": f"{LAYER}input_layernorm",
    "layers.{}.attn_o": f"{LAYER}self_attention.dense",
    "layers.{}.ffn_norm": f"{LAYER}post_attention_layernorm",
    "layers.{}.ffn_up": f"{LAYER}mlp.dense_h_to_4h",
    "layers.{}.ffn_down": f"{LAYER}mlp.dense_4h_to_h",
}
# Keys of transformers -> keys of old configurations.
OLD_KEYS: Final = {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}


@register
class BloomForCausalLM(HfSchema):
    """BLOOM."""

    model_type = "bloom"
    architecture = Bloom
    keys = hf_keys(
        Key("layers", "n_layer", "u32"),
        Key("heads", "n_head", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        without=("ffn", "head_dim", "kv_heads"),
    )
    defaults = {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "seq_length": 2048}
    constants = BLOOM_CONSTANTS
    supported = {"apply_residual_connection_post_layernorm": (False,)}
    positions_key = "seq_length"
    ffn_widths = 4
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.word_embeddings.weight",
        **{
            f"{name}.{part}": f"{stored}.{part}"
            for name, stored in NORMS_AND_PRODUCTS.items()
            for part in ("weight", "bias")
        },
        **fused_qkv_tensors(f"{LAYER}self_attention.query_key_value", QKV_ROWS_BY_KV_HEAD),
    }
    name_prefix = "transformer."

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        old = {key: values.get(name) for key, name in OLD_KEYS.items() if name in values.values}
        return super().config_from_json(values.with_values({**old, **values.values}), dtype)
