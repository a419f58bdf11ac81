"""GGUF files of Jais 1."""

from dataclasses import replace
from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES, GPT2_KEYS, GPT2_TENSORS
from sporelm.checkpoints.gguf_schema import GgufModel, GgufSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import StoredAs
from sporelm.checkpoints.transforms import Divide
from sporelm.models.architectures.jais import Jais
from sporelm.models.config import ModelConfig

OCTAVES: Final = 8.0
JAIS_CONSTANTS: Final = {"rotary": 0, **ALL_BIASES, "alibi": OCTAVES}


def with_score_scale_by_width(config: ModelConfig, *, is_by_width: bool) -> ModelConfig:
    """Return the configuration with scores divided by a head's width, or by its square root."""
    scale = 1 / config.head_dim if is_by_width else None
    return replace(config, scales=replace(config.scales, attention=scale))


@register
class JaisGguf(GgufSchema):
    """`jais`. Embedding and output are stored multiplied by their factors (muP): llama.cpp has no key for them."""

    names = ("jais",)
    architecture = Jais
    keys = gguf_keys(
        *GPT2_KEYS,
        Key("alibi", "attention.max_alibi_bias", "f32", 1, 1024, OCTAVES),
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = JAIS_CONSTANTS
    tensors = {
        **GPT2_TENSORS,
        "embedding.weight": StoredAs("token_embd.weight", Divide(lambda config: config.scales.embedding)),
        "output.weight": StoredAs("output.weight", Divide(lambda config: config.scales.output)),
    }

    def config_from_metadata(self, gguf: GgufModel, values: ConfigValues | None = None) -> ModelConfig:
        return with_score_scale_by_width(super().config_from_metadata(gguf, values), is_by_width=True)

    def find_unsupported(self, config: ModelConfig) -> str:
        if config.tie_embeddings:
            return "its output is tied to the embedding"
        return "" if config.scales.attention else "its scores are divided by the square root of the head width"
