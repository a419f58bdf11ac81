"""Names of stored tensors: as templates with `{}` for the layer, and those that are not read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from sporelm.checkpoints.rope_fields import FACTOR_TENSORS

Kind = Literal["gguf", "hf"]
GGUF: Final = "gguf"
HF: Final = "hf"


# Tensors that are no parameters: the angles of the rotary embedding follow from the configuration, and the factors of
# rotary frequencies are read into it by `open_model`.
IGNORED: Mapping[Kind, tuple[str, ...]] = {
    "gguf": (*FACTOR_TENSORS, "blk.{}.attn_rot_embd.weight"),
    "hf": ("model.layers.{}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
}


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
