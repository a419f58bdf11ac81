"""Names of stored tensors: templates with `{}` for the layer, and tensors that are not read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from sporelm.checkpoints.rope_fields import FACTOR_TENSORS

Kind = Literal["gguf", "hf"]
GGUF: Final = "gguf"
HF: Final = "hf"


# Tensors that are not parameters: the angles of the rotary embedding follow from the configuration, and `open_model`
# reads the factors of rotary frequencies into it.
IGNORED: Mapping[Kind, tuple[str, ...]] = {
    "gguf": (*FACTOR_TENSORS, "blk.{}.attn_rot_embd.weight"),
    "hf": ("model.layers.{}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
}


def split_layer_number(name: str) -> tuple[str, str]:
    """Return a name with its first number between dots as `{}`, and that number: "blk.3.x" -> "blk.{}.x", "3"."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part.isascii() and part.isdigit():
            return ".".join([*parts[:index], "{}", *parts[index + 1 :]]), part
    return name, ""


def find_unread(names: Iterable[str], kind: Kind, more: Iterable[str] = ()) -> set[str]:
    """Return the stored names that may be left unread.

    more   templates of one architecture, or prefixes of them, "...*"
    """
    templates = {*IGNORED[kind], *more}
    prefixes = tuple(each.removesuffix("*") for each in templates if each.endswith("*"))
    return {
        name
        for name in names
        if (template := split_layer_number(name)[0]) in templates or template.startswith(prefixes)
    }


# Parts of names that only MTP layers have: the modules that join the embedding and the hidden states.
MTP_NAME_PARTS: Final = ("eh_proj", "enorm", "hnorm", "nextn")


def find_mtp_tensors(names: Iterable[str], layers: int) -> set[str]:
    """Return the stored names of MTP layers past the last layer."""
    prefixes = ("blk.{}.", "model.layers.{}.")
    by_layer: dict[int, set[str]] = {}
    for name in names:
        template, number = split_layer_number(name)
        if template.startswith(prefixes) and int(number) >= layers:
            by_layer.setdefault(int(number), set()).add(name)
    mtp_layers = [
        group
        for group in by_layer.values()
        if any(part in MTP_NAME_PARTS for name in group for part in name.split("."))
    ]
    return set().union(*mtp_layers)


def format_names(names: Sequence[str], limit: int = 4) -> str:
    """Return a few of the names and the count of the others, for one-line messages."""
    text = ", ".join(names[:limit])
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"
