"""GGUF files of Command-R, Command-R+ and Aya."""

from typing import Final

from sporelm.checkpoints.config_keys import Key, gguf_keys
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.gguf_tensors import DECODER_TENSORS, HEAD_NORM_TENSORS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.cohere import Cohere
from sporelm.models.config import ModelConfig

MIN_SCALE: Final = 1e-6
MAX_SCALE: Final = 1e6
COHERE_KEYS: Final = (
    Key("eps", "attention.layer_norm_epsilon", "f32"),
    Key("scales.output", "logit_scale", "f32", MIN_SCALE, MAX_SCALE, 1.0),
)
COHERE_CONSTANTS: Final = {"parallel": True, "rope_style": "adjacent"}


def find_untied(config: ModelConfig) -> str:
    """Return the clause that a GGUF file cannot hold a separate output; "" if the output is tied."""
    return "" if config.tie_embeddings else "its output is not tied to the embedding"


@register
class CohereGguf(GgufSchema):
    """`command-r`."""

    names = ("command-r",)
    architecture = Cohere
    keys = gguf_keys(
        *COHERE_KEYS, Key("has_head_norms", "", "bool", tensor="layers.{}.attn_q_norm.weight"), without=("window",)
    )
    constants = COHERE_CONSTANTS
    tensors = DECODER_TENSORS | HEAD_NORM_TENSORS

    def find_unsupported(self, config: ModelConfig) -> str:
        return find_untied(config)
