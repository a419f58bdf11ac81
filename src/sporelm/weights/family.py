"""What a model's file says about its family: what files call its architecture, its numbers and its weights.

GGUF keys: the specification, section "LLM", and llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of
transformers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sporelm.weights.config import ModelConfig
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, Kind, Table

OPTIONAL = object()


class Field(NamedTuple):
    """One number of a configuration.

    ours      its attribute in `ModelConfig`, with a dot that of one of its parts: "width", "scales.embedding"
    gguf      its key in GGUF metadata, without the architecture; "" where those files do not say it
    kind      "u32", "f32" or "bool"; those of bool are written by the class alone (`HfClass.fields`)
    hf        its key in config.json; "" where that does not say it
    low, high the values that it may have; those of SHAPE are in `weights.config_files`
    default   where neither file nor class says it; None if it must be there, OPTIONAL if it is then None
    """

    ours: str
    gguf: str
    kind: str
    hf: str
    low: float = 0
    high: float = 0
    default: Any = None


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
    Field("rotary", "rope.dimension_count", "u32", ""),
    Field("window", "attention.sliding_window", "u32", ""),
)


# Where config.json says whether query, key, value and output have biases.
ATTENTION_BIAS = (
    Field("attention_bias", "", "bool", "attention_bias"),
    Field("attention_out_bias", "", "bool", "attention_bias"),
)


def fields(*changes: Field, without: Sequence[str] = ()) -> tuple[Field, ...]:
    """SHAPE with some fields in place of those of the same attribute, those that are new, and not those `without`."""
    own = {change.ours for change in changes} | set(without)
    return (*(each for each in SHAPE if each.ours not in own), *changes)


def value_of(config: ModelConfig, ours: str) -> Any:
    """The value of a field; None where the configuration lacks the part that it is of."""
    value: Any = config
    for name in ours.split("."):
        value = None if value is None else getattr(value, name)
    return value


class HfClass(NamedTuple):
    """A class of transformers.

    defaults   what it takes where config.json has no such key, and differs from what we would take
    fields     keys of config.json that only it has -> attribute in `ModelConfig`, for folders that we write
    """

    name: str
    model_type: str
    defaults: Mapping[str, Any] = {}
    fields: tuple[tuple[str, str], ...] = ()


Finish = Callable[[ModelConfig, Fields, Kind], ModelConfig]


@dataclass(frozen=True)
class Family:
    """What an architecture is called and how its files describe it.

    gguf            its general.architecture
    classes         those of transformers with these weights and this meaning; the first is written by default
    fields          the numbers of its configuration
    names           of its weights
    fixed           attributes of `ModelConfig` that all its models share
    only            keys of config.json that would change the result -> the values that we compute; the first is that of
                    a folder that does not say
    finish          what the tables cannot say: of the configuration so far, the file's fields and its kind
    choose          which of the classes a GGUF file's configuration is converted back into
    words           more of config.json, for folders that we write
    positions       the key of config.json for the number of positions
    ffn_widths      the feed-forward block's width in widths, where config.json does not say it; 0: it must
    full_layers     of a number of layers: those that have no window where GGUF files speak of one
    reworded        config.json in the words that the tables know, where it has others too
    unsaid          why a GGUF file cannot say what a configuration means; "" where it can
    ignored         stored names that may be left unread, of either kind, as templates
    prefix          what stored names of Hugging Face folders may lack in front
    paired_rows     its GGUF files have the rows of query and key as adjacent pairs (llama.cpp's converter)
    partial_rotary  files may say that only the first numbers of a head are rotated
    windowless      llama.cpp knows no sliding window for it
    own             the record of numbers that only this family has, `ModelConfig.own`
    """

    gguf: str
    classes: tuple[HfClass, ...]
    fields: tuple[Field, ...] = SHAPE
    names: Table = COMMON
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"hidden_act": ("silu",)})
    finish: Finish | None = None
    choose: Callable[[ModelConfig], str] | None = None
    words: Callable[[ModelConfig], dict[str, Any]] | None = None
    full_layers: Callable[[int], frozenset[int]] = lambda layers: frozenset()
    reworded: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values
    unsaid: Callable[[ModelConfig], str] | None = None
    positions: str = "max_position_embeddings"
    ffn_widths: int = 0
    ignored: tuple[str, ...] = ()
    prefix: str = ""
    paired_rows: bool = False
    partial_rotary: bool = False
    windowless: bool = False
    own: type | None = None

    @property
    def called(self) -> tuple[str, ...]:
        """Every name of the architecture."""
        return (self.gguf, *(one.name for one in self.classes))

    def class_of(self, config: ModelConfig) -> HfClass:
        """The class of transformers for a configuration. Raises UnsupportedModel if there is none."""
        name = self.choose(config) if self.choose else self.classes[0].name
        return next(one for one in self.classes if one.name == name)

    def class_named(self, name: str) -> HfClass:
        """The class of this name; the first for any other."""
        return next((one for one in self.classes if one.name == name), self.classes[0])

    def key(self, ours: str, kind: Kind) -> str:
        """The first key for an attribute in files of a kind."""
        found = [each.gguf if kind == "gguf" else each.hf for each in self.fields if each.ours == ours]
        return next((key for key in found if key), "")
