"""What each architecture's configuration is called in GGUF metadata and in config.json; a family is a table.

GGUF keys: the specification, section "LLM", and llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of
transformers. Names of tensors are in `weights.names`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sporelm.errors import UnsupportedModel
from sporelm.weights.config import ModelConfig


class Field(NamedTuple):
    """One number of a configuration: its attribute in `ModelConfig`, its key and kind in GGUF, its key in config.json.

    A name that is empty is not written there; None as a value is left out.
    """

    ours: str
    gguf: str
    kind: str
    hf: str


SHAPE = (
    Field("layers", "block_count", "u32", "num_hidden_layers"),
    Field("width", "embedding_length", "u32", "hidden_size"),
    Field("ffn", "feed_forward_length", "u32", "intermediate_size"),
    Field("heads", "attention.head_count", "u32", "num_attention_heads"),
    Field("kv_heads", "attention.head_count_kv", "u32", "num_key_value_heads"),
    Field("head_dim", "attention.key_length", "u32", "head_dim"),
    Field("head_dim", "attention.value_length", "u32", ""),
    Field("eps", "attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    Field("vocab", "vocab_size", "u32", "vocab_size"),
    Field("head_dim", "rope.dimension_count", "u32", ""),
    Field("window", "attention.sliding_window", "u32", ""),
)


class HfClass(NamedTuple):
    """A class of transformers, and the fields of config.json that only it has: key -> attribute in `ModelConfig`."""

    name: str
    model_type: str
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Family:
    """An architecture in both worlds.

    gguf           its general.architecture
    classes        those of transformers that are converted into it
    choose         of them the one that a GGUF file's configuration is converted back into
    paired_rows    its GGUF files have the rows of query and key as adjacent pairs (`weights.load.PAIRED_ROWS`)
    windowless     llama.cpp knows no sliding window for it
    """

    gguf: str
    classes: tuple[HfClass, ...]
    choose: Callable[[ModelConfig], str]
    fields: tuple[Field, ...] = SHAPE
    paired_rows: bool = False
    windowless: bool = False


_FLAGS = (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"))


def _llama_class(config: ModelConfig) -> str:
    if config.window is None:
        return "LlamaForCausalLM"
    if config.attention_bias or config.mlp_bias:
        raise UnsupportedModel("a sliding window together with biases is of no class of transformers")
    return "MistralForCausalLM"


FAMILIES = (
    Family(
        "llama",
        (
            HfClass("LlamaForCausalLM", "llama", _FLAGS),
            HfClass("MistralForCausalLM", "mistral", (("sliding_window", "window"),)),
        ),
        _llama_class,
        paired_rows=True,
        windowless=True,
    ),
)


def family_of(architecture: str, where: str) -> Family:
    """The family of a GGUF architecture or a class of transformers. Raises UnsupportedModel for another one."""
    for family in FAMILIES:
        if architecture == family.gguf or any(architecture == one.name for one in family.classes):
            return family
    known = ", ".join(one.name for family in FAMILIES for one in family.classes)
    raise UnsupportedModel(f"{where}: architecture {architecture[:80]!r} cannot be converted; can be: {known}")


def class_of(family: Family, config: ModelConfig) -> HfClass:
    """The class of transformers for a configuration."""
    name = family.choose(config)
    return next(one for one in family.classes if one.name == name)
