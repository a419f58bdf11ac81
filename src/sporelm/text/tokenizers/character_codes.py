"""Translates tokenizers' regular expressions with `\\p{..}` into expressions over one byte per character.

A text is encoded with one code per character: ASCII stays itself; every other character becomes an atom, 0x80 or above,
which stands for its class and for those of the patterns' own ranges that contain it. So `\\p{L}` becomes a set of at
most 255 codes, and Python's `re`, which has no `\\p`, runs the patterns at full speed.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sporelm.text.tokenizers.unicode_classes import ASCII_CLASSES, CLASSES, HAN, PROPERTIES, class_table

SEPARATOR = "\xff"  # between pieces; not the code of any character, nor a member of any set
_FIRST_ATOM, _LAST_ATOM = 0x80, 0xFE
_SET = re.compile(r"\[(?:\\.|[^\]\\\[]|\[(?:\\.|[^\]\\])*\])*\]|\\p\{\w+\}|\\[sSdw]|[^\x00-\x7f]|\\.|.", re.DOTALL)
_MEMBER = re.compile(r"\\p\{\w+\}|\\.|.", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


_Region = frozenset[tuple[int, int]]  # the ranges beyond ASCII of one set: (first, last)


@dataclass
class _CharacterSet:
    """A set of a pattern: classes, ASCII characters, ranges of others; or, negated, all other characters."""

    negated: bool = False
    classes: set[str] = field(default_factory=set)
    ascii: set[int] = field(default_factory=set)
    region: _Region = frozenset()
    intersection: "_CharacterSet | None" = None  # a second set that must contain the characters too

    def contains(self, character_class: str, code: int | None, regions: Collection[_Region]) -> bool:
        """Whether a character is in the set: its class, its ASCII code or None, the regions that contain it."""
        is_member = character_class in self.classes or code in self.ascii or self.region in regions
        return is_member != self.negated and (
            self.intersection is None or self.intersection.contains(character_class, code, regions)
        )

    def list_regions(self) -> set[_Region]:
        """Return the regions that the set refers to."""
        return {self.region} - {frozenset()} | (self.intersection.list_regions() if self.intersection else set())

    def add(self, first: int, last: int) -> None:
        self.ascii.update(range(first, min(last, 127) + 1))
        if last > 127:
            self.region |= {(max(first, 128), last)}


def _parse_set(source: str) -> _CharacterSet:
    """Parse one class in brackets, `\\p{..}`, `\\s` and the like, or a character beyond ASCII."""
    if not source.startswith("["):
        return _parse_members(source)
    inner, _, second = source[1:-1].partition("&&")
    result = _parse_members(inner.removeprefix("^"))
    result.negated = inner.startswith("^")
    result.intersection = _parse_set(second) if second else None
    return result


def _parse_members(source: str) -> _CharacterSet:
    result = _CharacterSet()
    items = _MEMBER.findall(source)
    position = 0
    while position < len(items):
        item = items[position]
        name = item[3:-1] if item.startswith("\\p") else item[1:]
        if item == "\\S":
            result.negated = True
            result.classes |= set(PROPERTIES["s"])
        elif item == "\\p{Han}":
            result.region |= _parse_members(HAN).region
        elif item.startswith("\\") and name in PROPERTIES:
            result.classes |= set(PROPERTIES[name])
        elif items[position + 1 : position + 2] == ["-"] and position + 2 < len(items):
            result.add(_code(item), _code(items[position + 2]))
            position += 2
        else:
            result.add(_code(item), _code(item))
        position += 1
    return result


def _code(item: str) -> int:
    return ord(_ESCAPES.get(item[-1], item[-1]) if item.startswith("\\") else item)


class CharacterCodes:
    """The codes that a group of patterns needs, and the patterns and texts translated into them.

    Regions of these patterns divide the classes further; at most 127 atoms fit.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._sources = list(patterns)
        sets = [_parse_set(item) for source in self._sources for item in _tokenize(source) if _is_set(item)]
        regions = sorted(set[_Region]().union(*(each.list_regions() for each in sets)), key=sorted)
        self._atoms: list[tuple[str, Collection[_Region]]] = [(letter, ()) for letter in CLASSES]
        self._table = self._divide(regions) if regions else None

    def translate_patterns(self) -> list[str]:
        """Return the patterns over codes, in their order."""
        return ["".join(map(self._translate, _tokenize(source))) for source in self._sources]

    def encode(self, text: str) -> str:
        """Return `text` with one code per character, U+0000 to U+00FE. `text` is valid Unicode."""
        if text.isascii():
            return text
        if self._table is None:
            table = class_table() + np.uint8(_FIRST_ATOM)
            table[:_FIRST_ATOM] = np.arange(_FIRST_ATOM)
            self._table = table
        return self._table[np.frombuffer(text.encode("utf-32-le"), "<u4")].tobytes().decode("latin-1")

    def _divide(self, regions: list[_Region]) -> NDArray[np.uint8]:
        """Compute the atoms: classes, divided by the regions. Return code point -> code."""
        keys = class_table().astype(np.uint32)  # the class, and from bit 4 on one bit for each region
        for bit, region in enumerate(regions, 4):
            for first, last in region:
                keys[first : last + 1] |= np.uint32(1 << bit)
        codes = np.zeros(16 << len(regions), np.uint8)
        self._atoms = []
        for key in np.flatnonzero(np.bincount(keys[_FIRST_ATOM:])).tolist():
            codes[key] = _FIRST_ATOM + len(self._atoms)
            self._atoms.append((CLASSES[key & 15], [region for bit, region in enumerate(regions, 4) if key >> bit & 1]))
        assert len(self._atoms) <= _LAST_ATOM - _FIRST_ATOM + 1, f"{len(self._atoms)} kinds of characters"
        table: NDArray[np.uint8] = codes[keys]
        table[:_FIRST_ATOM] = np.arange(_FIRST_ATOM)
        return table

    def _translate(self, item: str) -> str:
        if item == "$":  # the end of a piece, not of a line
            return f"(?={SEPARATOR}|\\Z)"
        if not _is_set(item):
            return item
        characters = _parse_set(item)
        codes = [code for code in range(128) if characters.contains(ASCII_CLASSES[code], code, ())]
        atoms = enumerate(self._atoms, _FIRST_ATOM)
        codes += [code for code, (letter, regions) in atoms if characters.contains(letter, None, regions)]
        members = "".join(map("\\x{:02x}".format, codes))
        return f"[{members}]" if codes else "(?!)"


def _tokenize(source: str) -> Iterator[str]:
    return iter(_SET.findall(source))


def _is_set(item: str) -> bool:
    return item.startswith(("[", "\\p", "\\s", "\\S", "\\d", "\\w")) or ord(item[0]) > 127
