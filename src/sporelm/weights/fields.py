"""Values of a model file's metadata, each checked for its type and range when it is read."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel

LONGEST_NAME = 200
TAG = "__float__"  # by which transformers 5 writes what JSON has no number for: {"__float__": "Infinity"}
NONE: Mapping[str, str] = MappingProxyType({})
TAGGED = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


class Fields:
    """Values of a mapping by key, each checked for its type and range when it is read.

    Errors call a key what `called` says, if it is there: a file may have another word for it than the reader.
    """

    def __init__(self, values: Mapping[str, Any], where: str, called: Mapping[str, str] = NONE) -> None:
        self.values, self.where, self.called = values, where, called

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number from low to high. Raises ModelFileError otherwise, or if it is absent without a default."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            must = f"be whole, from {low} to {high}" if low < high else f"be {low}"
            raise ModelFileError(f"{self._at(key)} is {shown(value)}; it must {must}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number between low and high, both allowed."""
        value = self._get(key, default)
        if not _is_number(value) or not low <= value <= high:  # NaN is in no range
            raise ModelFileError(f"{self._at(key)} is {shown(value)}; it must be a number from {low} to {high}")
        return float(value)

    def numbers(self, key: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of `count` finite numbers between low and high."""
        values = self._get(key, None)
        if not isinstance(values, list | tuple) or len(values) != count:
            held = f"{len(values)} values" if isinstance(values, list | tuple) else shown(values)
            raise ModelFileError(f"{self._at(key)} is {held}; it must be a list of {count} numbers")
        values = [_untagged(value) for value in values]
        for index, value in enumerate(values):
            if not _is_number(value) or not low <= value <= high:
                what = f"value {index} of {self.name_of(key)} is {shown(value)}"
                raise ModelFileError(f"{self.where}: {what}; it must be a number from {low} to {high}")
        return tuple(float(value) for value in values)

    def flag(self, key: str, default: bool) -> bool:
        """True or false; null is false, not the default of an absent key."""
        value = False if key in self.values and self.values[key] is None else default
        value = self._get(key, value)
        if not isinstance(value, bool):
            raise ModelFileError(f"{self._at(key)} is {shown(value)}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string of bounded length."""
        value = self._get(key, default)
        if not isinstance(value, str) or len(value) > LONGEST_NAME:
            raise ModelFileError(f"{self._at(key)} is {shown(value)}; it must be text, at most {LONGEST_NAME} long")
        return value

    def name(self, key: str, default: str) -> str:
        """A name to show: of one line, cut where it is too long to be one."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"{self._at(key)} is {shown(value)}; it must be text")
        cut = value[:LONGEST_NAME]
        return "".join(letter if letter.isprintable() else " " for letter in cut).strip() or default

    def name_of(self, key: str) -> str:
        """What the file calls a key."""
        return self.called.get(key, key)

    def among(self, *keys: str) -> str:
        """Those of the keys that the file has, in brackets, for the end of an error about how they fit each other."""
        found = [self.name_of(key) for key in keys if key in self.values]
        return f" ({', '.join(found)})" if found else ""

    def has(self, key: str) -> bool:
        """Whether the file says a value; null says none."""
        return self.values.get(key) is not None

    def _at(self, key: str) -> str:
        """The beginning of an error about a key."""
        return f"{self.where}: {self.name_of(key)}"

    def only(self, known: Iterable[str], what: str) -> None:
        """Raise UnsupportedModel for a key that is not known: leaving it out might change the result."""
        for key in sorted(set(map(str, self.values)) - set(known)):
            raise UnsupportedModel(f"{self.where}: {what} {shown(key)} is not known, and it may change the result")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise ModelFileError(f"{self._at(key)} is missing; the file does not describe its model")
            return default
        return _untagged(value)


def shown(value: Any) -> str:
    """A value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _untagged(value: Any) -> Any:
    """A number that has a tag, as it is; any other value."""
    tagged = isinstance(value, Mapping) and value.keys() == {TAG} and isinstance(value[TAG], str)
    return TAGGED.get(value[TAG], value) if tagged else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
