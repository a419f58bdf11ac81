"""What a model's file says about its family: what files call its architecture, its numbers and its weights.

GGUF keys: the specification, section "LLM", and llama.cpp's llama-arch.cpp. Hugging Face: the configuration classes of
transformers.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sporelm.checkpoints.fields import NONE, Fields
from sporelm.checkpoints.row_cuts import RowCut
from sporelm.checkpoints.tensor_names import COMMON, Kind, Table
from sporelm.models.config import ModelConfig

OPTIONAL = object()


class Field(NamedTuple):
    """One number of a configuration.

    ours      its attribute in `ModelConfig`, with a dot that of one of its parts: "width", "scales.embedding"
    gguf      its key in GGUF metadata, without the architecture; "" where those files do not say it
    kind      "u32", "f32", "str" or "bool"; those of bool are written by the class alone (`HfClass.fields`)
    hf        its key in config.json; "" where that does not say it
    low, high the values that it may have; those of SHAPE are in the schemas
    default   where neither file nor class says it; None if it must be there, OPTIONAL if it is then None
    words     what config.json may say, where that is a word; GGUF files hold it too, or as "u32" its place among them,
              0 for the default
    weight    of our names: a GGUF file means the bool by having such a weight in a layer
    """

    ours: str
    gguf: str
    kind: str
    hf: str
    low: float = 0
    high: float = 0
    default: Any = None
    words: tuple[str, ...] = ()
    weight: str = ""

    def held(self, value: Any) -> Any:
        """A value as GGUF files hold it."""
        return self.words.index(value) if self.words and self.kind == "u32" else value


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


# Words of config.json for GELU -> kinds of `ops.activate`. transformers computes with a tanh what others call fast.
GELUS: Final = {"gelu": "gelu"} | dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh")


def activation(hf: str, default: str, words: Iterable[str] = GELUS) -> Field:
    """The field of the feed-forward block's activation function, by its key in config.json. llama.cpp does not heed the
    key of GGUF files where it knows one function for an architecture."""
    return Field("activation", "hidden_activation", "str", hf, default=default, words=tuple(words))


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
    names      of its weights, where they are not its family's
    called     keys of config.json as errors name them, where its word is another than its family's
    inner      key of config.json under which the text model's numbers lie, in folders that we write
    """

    name: str
    model_type: str
    defaults: Mapping[str, Any] = {}
    fields: tuple[tuple[str, str], ...] = ()
    names: Table = ()
    inner: str = ""
    called: Mapping[str, str] = NONE


Finish = Callable[[ModelConfig, Fields, Kind], ModelConfig]
Notice = Callable[[ModelConfig, Mapping[str, Any], Mapping[str, tuple[int, ...]]], ModelConfig]


@dataclass(frozen=True)
class Family:
    """What an architecture is called and how its files describe it.

    gguf            its general.architecture
    mixture         that of its mixtures of experts, where it is another
    classes         those of transformers with these weights and this meaning; the first is written by default
    fields          the numbers of its configuration
    names           of its weights
    others          by kind of files, rows of `names` as some of them have them
    fixed           attributes of `ModelConfig` that all its models share, with a dot those of one of its parts; of
                    those that are fields too, what counts where a file does not say it
    only            keys of config.json that would change the result -> the values that we compute; the first is that of
                    a folder that does not say
    finish          what the tables cannot say: of the configuration so far, the file's fields and its kind
    noticed         what GGUF files tell by other metadata, or by their tensors' shapes: of the configuration so far,
                    all metadata, and shapes by name
    said            more of GGUF metadata, for files that we write: key -> (kind, value)
    choose          which of the classes a GGUF file's configuration is converted back into
    words           more of config.json, for folders that we write
    rotary_words    likewise, of its rotary parameters
    wanted          shapes of GGUF tensors that llama.cpp reads for nothing, or with more rows than folders have: zeros
                    where a folder lacks them, the first row where it has fewer
    positions       the key of config.json for the number of positions
    ffn_widths      the feed-forward block's width in widths, where config.json does not say it; 0: it must
    full_layers     of a number of layers: those that have no window where GGUF files speak of one
    reworded        config.json in the words that the tables know, where it has others too
    regrouped       GGUF metadata likewise, its keys without the architecture
    tells_layers    its GGUF files say of each layer whether it has a window
    unsaid          why a GGUF file cannot say what a configuration means; "" where it can
    ignored         stored names that may be left unread, of either kind, as templates
    prefix          what stored names of Hugging Face folders may lack in front
    fronts          what they may have in front, one of these
    paired_rows     its GGUF files have the rows of query and key as adjacent pairs (llama.cpp's converter)
    partial_rotary  files may say that only the first numbers of a head are rotated
    attends         its layers have heads of attention and feed-forward blocks
    windowless      llama.cpp knows no sliding window for it
    counts_gained   its max_position_embeddings counts the positions that linear scaling gains; that of others does not
    reads           its attention sees both ways: an encoder; files of others that say so are refused
    further_layers  its files may have layers past the last that predict tokens further ahead; they are left unread
    yarn_truncates  the ends of YaRN's ramp are whole numbers in its GGUF files, which cannot say it
    dense           its GGUF files hold what pooled vectors go through, two plain matrices
    listed          keys of GGUF metadata that hold a weight's numbers, one for each layer -> the shape of each layer's;
                    `names` has them as names of tensors
    own             the record of numbers that only this family has, `ModelConfig.own`
    resaved         parts of tensors' names, and what transformers 5 has in their place in folders that it writes
    row_cuts        tensors of folders that transformers may have written cut at other rows than the weights
    modules         likewise, what its modules are called, by which adapters name them; one is put in after the other
    """

    gguf: str
    classes: tuple[HfClass, ...]
    fields: tuple[Field, ...] = SHAPE
    names: Table = COMMON
    others: Mapping[Kind, Table] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"hidden_act": ("silu",)})
    finish: Finish | None = None
    noticed: Notice | None = None
    said: Callable[[ModelConfig], dict[str, tuple[str, Any]]] | None = None
    choose: Callable[[ModelConfig], str] | None = None
    words: Callable[[ModelConfig], dict[str, Any]] | None = None
    rotary_words: Callable[[ModelConfig], dict[str, Any]] | None = None
    wanted: Callable[[ModelConfig], dict[str, tuple[int, ...]]] | None = None
    full_layers: Callable[[int], frozenset[int]] = lambda layers: frozenset()
    reworded: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values
    regrouped: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values
    unsaid: Callable[[ModelConfig], str] | None = None
    positions: str = "max_position_embeddings"
    ffn_widths: int = 0
    ignored: tuple[str, ...] = ()
    prefix: str = ""
    fronts: tuple[str, ...] = ()
    paired_rows: bool = False
    partial_rotary: bool = False
    attends: bool = True
    windowless: bool = False
    counts_gained: bool = False
    reads: bool = False
    tells_layers: bool = False
    further_layers: bool = False
    yarn_truncates: bool = True
    dense: bool = False
    listed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own: type | None = None
    mixture: str = ""
    resaved: tuple[tuple[str, str], ...] = ()
    modules: tuple[tuple[str, str], ...] = ()
    row_cuts: Callable[[ModelConfig], list[RowCut]] | None = None

    @property
    def called(self) -> tuple[str, ...]:
        """Every name of the architecture."""
        mixture = (self.mixture,) if self.mixture else ()
        return (self.gguf, *mixture, *(one.name for one in self.classes))

    def written(self, config: ModelConfig) -> "Family":
        """The family by the name that GGUF files of a configuration have."""
        return replace(self, gguf=self.mixture) if self.mixture and config.experts else self

    def class_of(self, config: ModelConfig) -> HfClass:
        """The class of transformers for a configuration. Raises UnsupportedModel if there is none."""
        name = self.choose(config) if self.choose else self.classes[0].name
        return next(one for one in self.classes if one.name == name)

    def table(self, config: ModelConfig) -> Table:
        """The names of a configuration's weights."""
        names = self.class_of(config).names if any(one.names for one in self.classes) else ()
        return names or self.names

    def class_named(self, name: str) -> HfClass:
        """The class of this name; the first for any other."""
        return next((one for one in self.classes if one.name == name), self.classes[0])

    def key(self, ours: str, kind: Kind) -> str:
        """The first key for an attribute in files of a kind."""
        found = [each.gguf if kind == "gguf" else each.hf for each in self.fields if each.ours == ours]
        return next((key for key in found if key), "")
