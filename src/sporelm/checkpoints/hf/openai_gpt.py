"""Hugging Face folders of GPT."""

from sporelm.checkpoints.config_keys import Key, activation_key, hf_keys
from sporelm.checkpoints.gguf.gpt2 import ALL_BIASES
from sporelm.checkpoints.hf.gpt2 import GPT2_KEYS, MASK_TENSORS, gpt2_tensors
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.schema_registry import register
from sporelm.models.architectures.openai_gpt import ACTIVATIONS, OpenAIGPT


@register
class OpenAIGPTLMHeadModel(HfSchema):
    """GPT. Its feed-forward block is four times as wide as the model; config.json has no key for it."""

    model_type = "openai-gpt"
    architecture = OpenAIGPT
    keys = hf_keys(
        *GPT2_KEYS, Key("ffn", "", "u32"), activation_key("afn", "gelu", ACTIVATIONS), without=("head_dim", "kv_heads")
    )
    defaults = {
        "tie_word_embeddings": True,
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 512,
        "vocab_size": 40478,
        "layer_norm_epsilon": 1e-5,
    }
    constants = {"rotary": 0, **ALL_BIASES}
    supported = {}
    positions_key = "n_positions"
    ffn_widths = 4
    tensors = {
        **gpt2_tensors(is_transposed=True),
        "embedding.weight": "transformer.tokens_embed.weight",
        "positions.weight": "transformer.positions_embed.weight",
    }
    ignored_tensors = MASK_TENSORS
    name_prefix = "transformer."
