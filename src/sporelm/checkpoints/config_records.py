"""Builds a configuration and its records from the values of files."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from sporelm.checkpoints.config_keys import OPTIONAL, SHAPE_ATTRIBUTES, Key
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architecture_registry import Architecture
from sporelm.models.config import MAX_HEAD_DIM, Experts, ModelConfig, Scales
from sporelm.models.encoder import Encoder

MIN_EPS = 9e-13  # BERT's 1e-12, as float32 has it
NO_ATTENTION: Mapping[str, int] = {"heads": 1, "kv_heads": 1, "head_dim": 2, "ffn": 0}
Config = TypeVar("Config", bound=ModelConfig)


class ConfigRecords:
    """Attributes of a configuration by name; attributes of its records have a prefix: "experts.count"."""

    def __init__(self, constants: Mapping[str, Any]) -> None:
        self._records: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for attribute, value in constants.items():
            self.set(attribute, value)

    def set(self, attribute: str, value: Any) -> None:
        """Set an attribute."""
        record, _, name = attribute.rpartition(".")
        self._records[record][name] = value

    def read(self, key: Key, values: ConfigValues, *, is_gguf: bool) -> None:
        """Read the attribute of a key. Skip the shape, which the schema reads, and constants that the file does not
        override."""
        record, _, name = key.attribute.rpartition(".")
        if key.attribute in SHAPE_ATTRIBUTES or not key.key:
            return
        if name not in self._records[record] or values.has(key.key):
            self._records[record][name] = read_key(key, values, is_gguf=is_gguf)

    def build(self, config_class: type[Config], **shape: Any) -> Config:
        """Return the configuration; values that were read override `shape`. The class of a record is the type of its
        field in `config_class`."""
        records = dict(self._records)
        found = {**shape, **records.pop("", {})}
        scales, experts = (records.pop(name, {}) for name in ("scales", "experts"))
        if scales:
            found["scales"] = Scales(**scales)
        if experts.get("count"):
            found["experts"] = Experts(**experts)
        classes: dict[str, Any] = {each.name: each.type for each in fields(config_class)} if records else {}
        found |= {name: classes[name](**values) for name, values in records.items()}
        return config_class(**found)


def read_key(key: Key, values: ConfigValues, *, is_gguf: bool) -> Any:
    """Return the value of a key in a file. Raises ModelFileError or UnsupportedModel if it is out of bounds."""
    if key.default is OPTIONAL and not values.has(key.key):
        return None
    if key.choices:
        return _read_choice(key, values, is_gguf=is_gguf)
    if key.type == "bool":
        return values.flag(key.key, bool(key.default))
    if key.type == "u32":
        return values.integer(key.key, int(key.low), int(key.high), key.default)
    default = None if key.default is OPTIONAL else key.default
    return values.number(key.key, key.low, key.high, default)


def _read_choice(key: Key, values: ConfigValues, *, is_gguf: bool) -> str:
    if is_gguf and key.type == "u32":
        return key.choices[values.integer(key.key, 0, len(key.choices) - 1, 0)] or str(key.default)
    if (choice := values.text(key.key, key.default)) not in key.choices or not choice:
        known = ", ".join(each for each in key.choices if each)
        what = f"{values.display_name(key.key)} {format_value(choice)}"
        raise UnsupportedModel(f"{values.where}: {what} is not supported; {known} are")
    return choice


def check_direction(architecture: type[Architecture], values: ConfigValues, key: str, name: str) -> None:
    """Raise UnsupportedModel for a decoder with bidirectional attention or an encoder with causal attention."""
    is_encoder = issubclass(architecture, Encoder)
    if values.has(key) and (causal := values.flag(key, True)) is is_encoder:
        what = f"{key} is {str(causal).lower()}"
        raise UnsupportedModel(f"{values.where}: {what}, which is not supported for {name!r}")


def read_rotary_width(rotary: int, head_dim: int, where: str) -> int:
    """Return the number of rotated dimensions of a head. Raises ModelFileError unless they are pairs of its
    dimensions."""
    if rotary > head_dim or (rotary != head_dim and rotary % 2) or rotary < 2:
        raise ModelFileError(f"{where}: cannot rotate {rotary} of a head's {head_dim} dimensions; they must be pairs")
    return rotary


def read_head_dim(values: ConfigValues, key: str, width: int, heads: int, other_keys: tuple[str, str]) -> int:
    """Return the dimensions of a head: those of the file, else the width divided by the heads.

    other_keys   of width and heads, for messages
    """
    if key and values.has(key):
        return values.integer(key, 2, MAX_HEAD_DIM)
    what = f"{values.where}: width {width} is not a multiple of {heads} heads and {key or 'their width'} is missing"
    if width % heads:
        raise ModelFileError(f"{what} ({', '.join(other_keys)})")
    if not 2 <= width // heads <= MAX_HEAD_DIM:
        what = (
            f"{heads} heads of a width of {width} have {width // heads} dimensions each; allowed: 2 to {MAX_HEAD_DIM}"
        )
        raise ModelFileError(f"{values.where}: {what} ({', '.join(other_keys)})")
    return width // heads
