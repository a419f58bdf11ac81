"""GGUF files of GPT. Only this engine writes them; their tensors have the names of GPT-2's."""

from sporelm.checkpoints.config_keys import GGUF_ACTIVATION_KEY, activation_key, gguf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES, GPT2_KEYS, GPT2_TENSORS
from sporelm.checkpoints.gguf_schema import GgufSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.openai_gpt import ACTIVATIONS, OpenAIGPT


@register
class OpenAIGPTGguf(GgufSchema):
    """`openai-gpt`."""

    names = ("openai-gpt",)
    architecture = OpenAIGPT
    keys = gguf_keys(
        *GPT2_KEYS,
        activation_key(GGUF_ACTIVATION_KEY, "gelu", ACTIVATIONS),
        without=("head_dim", "kv_heads", "rotary", "window"),
    )
    constants = {"rotary": 0, **ALL_BIASES}
    tensors = GPT2_TENSORS
