"""The key of a file that holds each attribute of a configuration, for one kind of files.

GGUF keys: the specification, section "LLM", and llama.cpp's llama-arch.cpp. config.json: the configuration classes of
transformers.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sporelm.models.config import ModelConfig
from sporelm.models.gelu_names import GELUS

OPTIONAL: Final = object()


class Key(NamedTuple):
    """A configuration attribute and the key under which files of one kind store it.

    attribute  of the configuration; with a dot, of one of its records: "experts.count", "scales.embedding"
    key        in config.json, or in GGUF metadata without the architecture in front
    type       "u32", "f32", "str" or "bool"
    low, high  allowed range; that of the shape keys is in the schema classes
    default    for a file without the key; None: the key is required; OPTIONAL: the attribute becomes None
    choices    allowed strings. With type "u32" the file holds an index into them, 0 for the default
    tensor     parameter name: the attribute is true if a layer of the GGUF file has this tensor
    """

    attribute: str
    key: str
    type: str
    low: float = 0
    high: float = 0
    default: Any = None
    choices: tuple[str, ...] = ()
    tensor: str = ""

    def encode(self, value: Any) -> Any:
        """Return a value of the attribute as files hold it."""
        return self.choices.index(value) if self.choices and self.type == "u32" else value


GGUF_SHAPE: Final = (
    Key("layers", "block_count", "u32"),
    Key("width", "embedding_length", "u32"),
    Key("ffn", "feed_forward_length", "u32"),
    Key("heads", "attention.head_count", "u32"),
    Key("kv_heads", "attention.head_count_kv", "u32"),
    Key("head_dim", "attention.key_length", "u32"),
    Key("head_dim", "attention.value_length", "u32"),
    Key("eps", "attention.layer_norm_rms_epsilon", "f32"),
    Key("vocab", "vocab_size", "u32"),
    Key("rotary", "rope.dimension_count", "u32"),
    Key("window", "attention.sliding_window", "u32"),
)
HF_SHAPE: Final = (
    Key("layers", "num_hidden_layers", "u32"),
    Key("width", "hidden_size", "u32"),
    Key("ffn", "intermediate_size", "u32"),
    Key("heads", "num_attention_heads", "u32"),
    Key("kv_heads", "num_key_value_heads", "u32"),
    Key("head_dim", "head_dim", "u32"),
    Key("eps", "rms_norm_eps", "f32"),
    Key("vocab", "vocab_size", "u32"),
)
SHAPE_ATTRIBUTES: Final = frozenset(each.attribute for each in GGUF_SHAPE)

# Biases of the query, key, value and output projections.
HF_ATTENTION_BIAS: Final = (
    Key("attention_bias", "attention_bias", "bool"),
    Key("attention_out_bias", "attention_bias", "bool"),
)


def activation_key(key: str, default: str, choices: Iterable[str] = GELUS) -> Key:
    """Return the key of the feed-forward block's activation function."""
    return Key("activation", key, "str", default=default, choices=tuple(choices))


# llama.cpp does not read this key for an architecture with a fixed activation function.
GGUF_ACTIVATION_KEY: Final = "hidden_activation"


def with_keys(base: Sequence[Key], *changes: Key, without: Sequence[str] = ()) -> tuple[Key, ...]:
    """Return `base` without the attributes of `changes` and `without`, followed by `changes`: the order in which files
    are written."""
    replaced = {change.attribute for change in changes} | set(without)
    return (*(each for each in base if each.attribute not in replaced), *changes)


def gguf_keys(*changes: Key, without: Sequence[str] = ()) -> tuple[Key, ...]:
    """Return the usual keys of GGUF metadata with these changes."""
    return with_keys(GGUF_SHAPE, *changes, without=without)


def hf_keys(*changes: Key, without: Sequence[str] = ()) -> tuple[Key, ...]:
    """Return the usual keys of config.json with these changes."""
    return with_keys(HF_SHAPE, *changes, without=without)


def find_key(keys: Iterable[Key], attribute: str) -> str:
    """Return the first key that holds an attribute; "" if files do not hold it."""
    return next((each.key for each in keys if each.attribute == attribute and each.key), "")


def get_attribute(config: ModelConfig, attribute: str) -> Any:
    """Return the value of an attribute; None if the configuration lacks its record."""
    value: Any = config
    for name in attribute.split("."):
        value = None if value is None else getattr(value, name)
    return value
