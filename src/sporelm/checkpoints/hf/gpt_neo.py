"""Hugging Face folders of GPT-Neo and TinyStories."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.gguf.gpt_neo import GPT_NEO_CONSTANTS, even_layers
from sporelm.checkpoints.hf.gpt2 import LAYER
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS
from sporelm.checkpoints.hf_windows import read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.gpt_neo import GPTNeo
from sporelm.models.config import ModelConfig

LAYER_TYPES: Final = ("global", "local")
MAX_REPEATS: Final = 4096
# Parameters -> stored names, both without ".weight" and ".bias".
NORMS_AND_PRODUCTS: Final = {
    "output_norm": "transformer.ln_f",
    "layers.{}.attn_norm": f"{LAYER}ln_1",
    "layers.{}.ffn_norm": f"{LAYER}ln_2",
    "layers.{}.attn_o": f"{LAYER}attn.attention.out_proj",
    "layers.{}.ffn_up": f"{LAYER}mlp.c_fc",
    "layers.{}.ffn_down": f"{LAYER}mlp.c_proj",
}


def read_attention_types(values: ConfigValues, layers: int) -> list[str]:
    """Return the type of each layer: `attention_types` has lists of types, each with its number of repeats."""
    found: list[Any] = []
    given: Any = values.get("attention_types") or [[list(LAYER_TYPES), layers // 2]]
    try:
        for types, repeats in given:
            found += list(types) * min(int(repeats), MAX_REPEATS)
    except (TypeError, ValueError):
        found = []
    if len(found) != layers or any(each not in LAYER_TYPES for each in found):
        what = f"attention_types is {format_value(given)}; it must have one of {LAYER_TYPES} for {layers} layers"
        raise UnsupportedModel(f"{values.where}: {what}")
    return found


@register
class GPTNeoForCausalLM(HfSchema):
    """GPT-Neo."""

    model_type = "gpt_neo"
    architecture = GPTNeo
    keys = hf_keys(
        Key("layers", "num_layers", "u32"),
        Key("heads", "num_heads", "u32"),
        Key("eps", "layer_norm_epsilon", "f32"),
        without=("head_dim", "kv_heads"),
    )
    defaults = {"tie_word_embeddings": True, "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "num_layers": 24}
    constants = GPT_NEO_CONSTANTS
    supported = {"activation_function": ("gelu_new", "gelu_pytorch_tanh")}
    ffn_widths = 4
    tensors = {
        **DECODER_TENSORS,
        "embedding.weight": "transformer.wte.weight",
        "positions.weight": "transformer.wpe.weight",
        **{
            f"{name}.{part}": f"{stored}.{part}"
            for name, stored in NORMS_AND_PRODUCTS.items()
            for part in ("weight", "bias")
        },
        **{f"layers.{{}}.attn_{name}.weight": f"{LAYER}attn.attention.{name}_proj.weight" for name in "qkv"},
    }
    ignored_tensors = (f"{LAYER}attn.attention.bias", f"{LAYER}attn.attention.masked_bias")
    name_prefix = "transformer."
    has_window_pattern = True

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return even_layers(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        config = super().config_from_json(values, dtype)
        types = read_attention_types(values, config.layers)
        full_layers = frozenset(layer for layer, each in enumerate(types) if each == "global")
        window = read_window(values, "window_size", 256) if len(full_layers) < config.layers else None
        return replace(config, window=window, full_layers=full_layers if window else frozenset())

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        types = [LAYER_TYPES[config.window_of(layer) is not None] for layer in range(config.layers)]
        return {"attention_types": [[types, 1]], "window_size": config.window or 256}
