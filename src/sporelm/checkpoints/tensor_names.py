"""What a model's weights are called: our names, those in GGUF files and those in Hugging Face folders; and `Param`.

`{}` stands for the layer's number. A model file lists only its differences from the table.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from sporelm.checkpoints.rope_fields import FACTOR_TENSORS

Kind = Literal["gguf", "hf"]
GGUF: Final = "gguf"
HF: Final = "hf"


@dataclass(frozen=True)
class OfLayer:
    """Rows of a configuration where layers differ: those of the layer whose weight is asked for, which `own` tells."""

    rows: Callable[[Any], Any]
    layer: int = 0


@dataclass(frozen=True)
class Stored:
    """How files hold a weight, where they do not hold it as it is; `weights.forms` brings it into our form.

    name         of the tensor
    rows         of a configuration: the numbers of the tensor's rows that are the weight, in our order; several weights
                 may be rows of one tensor, and each row belongs to one of them
    transposed   the tensor is [in, out]; `rows` counts those of [out, in]
    plus         what is added to the tensor's values (Gemma's norms)
    each         each matrix of [experts, out, in] is a tensor of its own, its number in place of "{e}" in the name
    columns      of a configuration: the numbers of the tensor's columns that are those of the weight, in our order
    flat         a matrix is a vector, row by row
    between      the tensor has one axis more, of length 1: its second
    above        so many axes of length 1 in front of all others; with `parts`, in front of those of each
    log          the tensor has logarithms of what the weight is less than zero by
    skip         rows at the tensor's beginning that are of no weight; zeros, where we write it
    unit         of a configuration: whether the weight's rows are the tensor's, brought to length one; or its columns,
                 where `unit_axis` is 0
    inner        `rows` and `transposed` are those of each expert's part of a tensor [experts, ...]; one in blocks of
                 numbers is never transposed (gpt-oss, whose quantized experts are [experts, out, in])
    heads        the rows of each head's matrix, of a weight [heads, out, in], one head after the other; with
                 `transposed` each is [in, out] there
    times        of a configuration: by what the tensor is the weight multiplied, a number or an array that broadcasts
                 against the weight (Falcon-H1, whose multipliers GGUF files have in their weights)
    part, parts  it is matrix, or vector, number `part` of a tensor [parts, out, in]
    unturned     of a configuration: the length of the tensor's last axis where it is not transposed, for it may be
                 either way
    """

    name: str
    rows: Callable[[Any], Any] | OfLayer | None = None
    transposed: bool = False
    plus: float = 0.0
    each: bool = False
    flat: bool = False
    skip: int = 0
    columns: Callable[[Any], Any] | None = None
    between: bool = False
    above: int = 0
    log: bool = False
    inner: bool = False
    unit: Callable[[Any], bool] | None = None
    unit_axis: int = -1
    heads: bool = False
    part: int = 0
    parts: int = 0
    unturned: Callable[[Any], int] | None = None
    times: Callable[[Any], Any] | None = None


class Names(NamedTuple):
    """One weight's name here, in GGUF files and in Hugging Face folders; or how those hold it."""

    ours: str
    gguf: str | Stored
    hf: str | Stored


Table = tuple[Names, ...]


def with_bias(ours: str, gguf: str, hf: str) -> Table:
    """The names of a weight and of its bias, from what they share: "layers.{}.attn_o"."""
    return tuple(Names(*(f"{name}.{kind}" for name in (ours, gguf, hf))) for kind in ("weight", "bias"))


def replace_end(names: Names, old: str, new: str) -> Names:
    """The names of a weight's other part."""
    ours, gguf, hf = (str(name).removesuffix(old) + new for name in names)
    return Names(ours, gguf, hf)


# GGUF: the specification's "Standardized tensor names". Hugging Face: the state dict of LlamaForCausalLM.
COMMON: tuple[Names, ...] = (
    Names("embedding.weight", "token_embd.weight", "model.embed_tokens.weight"),
    Names("output_norm.weight", "output_norm.weight", "model.norm.weight"),
    Names("output.weight", "output.weight", "lm_head.weight"),
    Names("layers.{}.attn_norm.weight", "blk.{}.attn_norm.weight", "model.layers.{}.input_layernorm.weight"),
    *(
        Names(
            f"layers.{{}}.attn_{ours}.{part}",
            f"blk.{{}}.attn_{gguf}.{part}",
            f"model.layers.{{}}.self_attn.{ours}_proj.{part}",
        )
        for ours, gguf in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output"))
        for part in ("weight", "bias")
    ),
    Names("layers.{}.ffn_norm.weight", "blk.{}.ffn_norm.weight", "model.layers.{}.post_attention_layernorm.weight"),
    *(
        Names(
            f"layers.{{}}.ffn_{name}.{part}", f"blk.{{}}.ffn_{name}.{part}", f"model.layers.{{}}.mlp.{name}_proj.{part}"
        )
        for name in ("gate", "up", "down")
        for part in ("weight", "bias")
    ),
)

# Norms of each head of queries and keys, where a family has them.
HEAD_NORMS: tuple[Names, ...] = tuple(
    Names(
        f"layers.{{}}.attn_{part}_norm.weight",
        f"blk.{{}}.attn_{part}_norm.weight",
        f"model.layers.{{}}.self_attn.{part}_norm.weight",
    )
    for part in "qk"
)

# Norms of what attention and the feed-forward block add, likewise.
POST_NORMS: tuple[Names, ...] = (
    Names(
        "layers.{}.attn_post_norm.weight",
        "blk.{}.post_attention_norm.weight",
        "model.layers.{}.post_attention_layernorm.weight",
    ),
    Names(
        "layers.{}.ffn_post_norm.weight",
        "blk.{}.post_ffw_norm.weight",
        "model.layers.{}.post_feedforward_layernorm.weight",
    ),
)

# The norm in front of the feed-forward block, in files of families that name it after what it follows.
NORM_BETWEEN: Final = Names(
    "layers.{}.ffn_norm.weight",
    "blk.{}.post_attention_norm.weight",
    "model.layers.{}.post_attention_layernorm.weight",
)

# Biases of layer norms, likewise.
NORM_BIASES: tuple[Names, ...] = tuple(
    replace_end(names, "weight", "bias") for names in COMMON if names.ours.endswith("_norm.weight")
)

# Tensors that are no parameters: the angles of the rotary embedding follow from the configuration, and the factors of
# rotary frequencies are read into it by `open_model`.
IGNORED: Mapping[Kind, tuple[str, ...]] = {
    "gguf": (*FACTOR_TENSORS, "blk.{}.attn_rot_embd.weight"),
    "hf": ("model.layers.{}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
}


def changed(table: Table, *changes: Names) -> Table:
    """A table with some rows in place of those of the same weights, and those that are new."""
    own = {names.ours: names for names in changes}
    kept = tuple(own.pop(names.ours, names) for names in table)
    return (*kept, *own.values())


def bare(table: Table) -> Table:
    """The names of folders that hold the model alone, without "model." in front."""
    found = []
    for names in table:
        form = form_in(names, HF)
        found.append(names._replace(hf=replace(form, name=form.name.removeprefix("model."))))
    return tuple(found)


def form_in(names: Names, kind: Kind) -> Stored:
    """How files of a kind hold a weight."""
    found = names.gguf if kind == GGUF else names.hf
    return found if isinstance(found, Stored) else Stored(found)


def templated(name: str) -> tuple[str, str]:
    """A name with its first number between dots as `{}`, and that number: "blk.3.x" -> "blk.{}.x", "3"."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isascii() and part.isdigit():
            return ".".join([*parts[:index], "{}", *parts[index + 1 :]]), part
    return name, ""


def ignorable(names: Iterable[str], kind: Kind, more: Iterable[str] = ()) -> set[str]:
    """Those stored names that may be left unread; `more` are templates of one family, or starts of them, "...*"."""
    spare = {*IGNORED[kind], *more}
    starts = tuple(each.removesuffix("*") for each in spare if each.endswith("*"))
    return {name for name in names if (template := templated(name)[0]) in spare or template.startswith(starts)}


# What a layer that predicts tokens further ahead has and no other one: what brings the embedding and the rows together.
FURTHER: Final = ("eh_proj", "enorm", "hnorm", "nextn")


def of_further_layers(names: Iterable[str], layers: int) -> set[str]:
    """Those stored names that are of layers past the last, of such as predict tokens further ahead."""
    starts = ("blk.{}.", "model.layers.{}.")
    held: dict[int, set[str]] = {}
    for name in names:
        template, number = templated(name)
        if template.startswith(starts) and int(number) >= layers:
            held.setdefault(int(number), set()).add(name)
    marked = [own for own in held.values() if any(part in FURTHER for name in own for part in name.split("."))]
    return set().union(*marked)


def listed(names: Sequence[str], most: int = 4) -> str:
    """A few of the names and the count of the others, for one-line messages."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
