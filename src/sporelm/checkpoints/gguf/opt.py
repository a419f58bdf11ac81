"""GGUF files of OPT and Galactica. Only this engine writes them; their tensors have the names of GPT-2's."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, OPTIONAL, Key, activation_key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, NORM_BIAS_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.models.architectures.opt import ACTIVATIONS, Opt, OptConfig
from sporelm.models.config import MAX_WIDTH, ModelConfig

EPS: Final = 1e-5  # folders do not contain it
OPT_BIASES: Final = ("attention_bias", "attention_out_bias", "mlp_bias")
OPT_TENSORS: Final[TensorTable] = {
    **DECODER_TENSORS,
    **NORM_BIAS_TENSORS,
    "positions.weight": "position_embd.weight",
}


def with_fixed_values(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the epsilon of OPT's norms, and with the width of its embedding."""
    assert isinstance(config, OptConfig)
    return replace(config, eps=EPS, embedding_width=config.embedding_width or config.width)


@register
class OptGguf(GgufSchema):
    """`opt`."""

    names = ("opt",)
    architecture = Opt
    keys = gguf_keys(
        Key("ffn", "feed_forward_length", "u32"),
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        activation_key(GGUF_ACTIVATION_KEY, "relu", ACTIVATIONS),
        Key("embedding_width", "embedding_length_in", "u32", 1, MAX_WIDTH, OPTIONAL),
        Key("is_pre_norm", "norm_before", "bool", default=True),
        Key("skips_last_norm", "skip_final_norm", "bool", default=False),
        Key("has_norm_weights", "", "bool", default=True, tensor="layers.{}.attn_norm.weight"),
        *(Key(part, "", "bool", default=True) for part in OPT_BIASES),
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = {"rotary": 0}
    tensors = {
        **OPT_TENSORS,
        "embedding_in.weight": "embedding_in.weight",
        "embedding_out.weight": "embedding_out.weight",
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_fixed_values(super().config_from_metadata(gguf, values))
