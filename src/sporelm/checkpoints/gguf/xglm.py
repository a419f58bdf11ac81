"""GGUF files of XGLM."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, activation_key, gguf_keys
from sporelm.checkpoints.gguf.biogpt import EMBEDDING_SCALE, BioGptGguf
from sporelm.checkpoints.gguf.gpt2 import GPT2_KEYS
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.biogpt import ACTIVATIONS
from sporelm.models.architectures.xglm import XGLM


@register
class XglmGguf(BioGptGguf):
    """`xglm`."""

    names = ("xglm",)
    architecture = XGLM
    keys = gguf_keys(
        *GPT2_KEYS,
        activation_key(GGUF_ACTIVATION_KEY, "gelu", ACTIVATIONS),
        EMBEDDING_SCALE,
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
