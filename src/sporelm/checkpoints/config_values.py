"""Values of config.json or GGUF metadata, checked for type and range on every read: files are untrusted."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel

MAX_TEXT_LENGTH = 200
MAX_SHOWN_LENGTH = 60
FLOAT_TAG = "__float__"  # transformers 5 writes non-finite numbers as {"__float__": "Infinity"}
TAGGED_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ConfigValues:
    """A mapping of configuration values and the file that they are from.

    values     by key
    where      the file, for the beginning of messages
    key_names  names of keys in messages, where the file has other names than the schema
    """

    values: Mapping[str, Any]
    where: str
    key_names: Mapping[str, str] = field(default_factory=lambda: NO_NAMES)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return an integer from low to high. Raises ModelFileError otherwise, or if it is absent without a default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            allowed = f"an integer from {low} to {high}" if low < high else f"{low}"
            raise ModelFileError(f"{self._at(key)} is {format_value(value)}; it must be {allowed}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """Return a finite number from low to high. Raises as `integer` does."""
        value = self._get(key, default)
        if not _is_number(value) or not low <= value <= high:  # NaN is in no range
            raise ModelFileError(f"{self._at(key)} is {format_value(value)}; it must be a number from {low} to {high}")
        return float(value)

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """Return a list of `count` finite numbers from low to high."""
        values = self._get(key, None)
        if not isinstance(values, list | tuple) or len(values) != count:
            problem = f"{len(values)} values" if isinstance(values, list | tuple) else format_value(values)
            raise ModelFileError(f"{self._at(key)} is {problem}; it must be a list of {count} numbers")
        values = [_decode_float(value) for value in values]
        for index, value in enumerate(values):
            if not _is_number(value) or not low <= value <= high:
                what = f"value {index} of {self.display_name(key)} is {format_value(value)}"
                raise ModelFileError(f"{self.where}: {what}; it must be a number from {low} to {high}")
        return tuple(float(value) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean. Null is false, not the default of an absent key."""
        value = False if key in self.values and self.values[key] is None else default
        value = self._get(key, value)
        if not isinstance(value, bool):
            raise ModelFileError(f"{self._at(key)} is {format_value(value)}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string of at most MAX_TEXT_LENGTH characters."""
        value = self._get(key, default)
        if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
            raise ModelFileError(
                f"{self._at(key)} is {format_value(value)}; it must be text, at most {MAX_TEXT_LENGTH} long"
            )
        return value

    def name(self, key: str, default: str) -> str:
        """Return a name for display: printable, on one line, cut to MAX_TEXT_LENGTH characters."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"{self._at(key)} is {format_value(value)}; it must be text")
        cut = value[:MAX_TEXT_LENGTH]
        return "".join(letter if letter.isprintable() else " " for letter in cut).strip() or default

    def has(self, key: str) -> bool:
        """Return whether the file gives a value; null counts as absent."""
        return self.values.get(key) is not None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the unchecked value."""
        return self.values.get(key, default)

    def display_name(self, key: str) -> str:
        """Return the name of a key in messages."""
        return self.key_names.get(key, key)

    def list_keys(self, *keys: str) -> str:
        """Return the keys that the file has, in brackets, for the end of a message about several keys."""
        found = [self.display_name(key) for key in keys if key in self.values]
        return f" ({', '.join(found)})" if found else ""

    def reject_unknown(self, known: Iterable[str], kind: str) -> None:
        """Raise UnsupportedModel for an unknown key: ignoring it might change the result."""
        for key in sorted(set(map(str, self.values)) - set(known)):
            raise UnsupportedModel(f"{self.where}: {kind} {format_value(key)} is unknown and may change the result")

    def with_values(self, values: Mapping[str, Any]) -> "ConfigValues":
        """Return other values of the same file."""
        return replace(self, values=values)

    def with_changes(self, changes: Mapping[str, Any]) -> "ConfigValues":
        """Return the values with some added or replaced."""
        return replace(self, values={**self.values, **changes})

    def _at(self, key: str) -> str:
        return f"{self.where}: {self.display_name(key)}"

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self._at(key)} is missing; the file does not describe its model")
            return default
        return _decode_float(value)


def format_value(value: Any) -> str:
    """Return the repr of a value for a message, truncated."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else text[: MAX_SHOWN_LENGTH - 3] + "..."


def _decode_float(value: Any) -> Any:
    """Return a tagged float as a number; any other value as it is."""
    is_tagged = isinstance(value, Mapping) and value.keys() == {FLOAT_TAG} and isinstance(value[FLOAT_TAG], str)
    return TAGGED_FLOATS.get(value[FLOAT_TAG], value) if is_tagged else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
