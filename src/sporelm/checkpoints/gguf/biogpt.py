"""GGUF files of BioGPT."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, Key, activation_key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.gguf.opt import OPT_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.biogpt import ACTIVATIONS, BioGPT
from sporelm.models.config import ModelConfig
from sporelm.models.decoder import Decoder

EPS: Final = 1e-5  # of the norms; config.json is ignored
BIOGPT_CONSTANTS: Final = {"rotary": 0, **ALL_BIASES}
EMBEDDING_SCALE: Final = Key("scales.embedding", "embedding_scale", "f32", 1e-6, 1e6, 1.0)


@register
class BioGptGguf(GgufSchema):
    """`biogpt`."""

    names: tuple[str, ...] = ("biogpt",)
    architecture: type[Decoder] = BioGPT
    keys = gguf_keys(
        Key("eps", "attention.layer_norm_epsilon", "f32"),
        activation_key(GGUF_ACTIVATION_KEY, "gelu", ACTIVATIONS),
        EMBEDDING_SCALE,
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = BIOGPT_CONSTANTS
    tensors = OPT_TENSORS

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return replace(super().config_from_metadata(gguf, values), eps=EPS)
