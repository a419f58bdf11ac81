"""BLOOM: a norm behind the embedding, layer norms with biases, GELU, and linear biases in place of positions."""

from collections.abc import Mapping
from typing import Any

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import BY_GROUP, qkv_names
from sporelm.weights.names import COMMON, Names, Param, changed

KINDS = ("weight", "bias")
LAYER = "transformer.h.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.word_embeddings.weight"),
    *(
        Names(f"{ours}.{kind}", f"{gguf}.{kind}", f"transformer.{hf}.{kind}")
        for ours, gguf, hf in (
            ("embedding_norm", "token_embd_norm", "word_embeddings_layernorm"),
            ("output_norm", "output_norm", "ln_f"),
        )
        for kind in KINDS
    ),
    *(
        Names(f"layers.{{}}.{ours}.{kind}", f"blk.{{}}.{gguf}.{kind}", f"{LAYER}{hf}.{kind}")
        for ours, gguf, hf in (
            ("attn_norm", "attn_norm", "input_layernorm"),
            ("attn_o", "attn_output", "self_attention.dense"),
            ("ffn_norm", "ffn_norm", "post_attention_layernorm"),
            ("ffn_up", "ffn_up", "mlp.dense_h_to_4h"),
            ("ffn_down", "ffn_down", "mlp.dense_4h_to_h"),
        )
        for kind in KINDS
    ),
    *qkv_names(f"{LAYER}self_attention.query_key_value", BY_GROUP),
)


def _reworded(values: dict[str, Any]) -> dict[str, Any]:
    """Configurations of old have other words for three numbers."""
    old = {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    return {key: values[word] for key, word in old.items() if word in values} | values


@architecture(
    Family(
        "bloom",
        (
            HfClass(
                "BloomForCausalLM",
                "bloom",
                {"tie_word_embeddings": True, "layer_norm_epsilon": 1e-5, "seq_length": 2048},
            ),
        ),
        fields(
            Field("layers", "block_count", "u32", "n_layer"),
            Field("ffn", "feed_forward_length", "u32", ""),
            Field("heads", "attention.head_count", "u32", "n_head"),
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed={"rotary": 0, "alibi": 8.0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
        only={"apply_residual_connection_post_layernorm": (False,)},
        reworded=_reworded,
        positions="seq_length",
        ffn_widths=4,
        prefix="transformer.",
    )
)
class Bloom(Decoder):
    """Attention with linear biases and a feed-forward block, norms in front (BigScience workshop 2022)."""

    norms = LayerNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding_norm = LayerNorm("embedding_norm", config.width, config.eps)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)

    def params(self) -> list[Param]:
        return [*super().params(), *self.embedding_norm.params()]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return self.embedding_norm(super().embedded(step, weights), weights)
