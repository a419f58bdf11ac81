"""Patterns of tokenizers, which name kinds of characters, as patterns over one byte per character.

A text is rewritten with one code per character: ASCII stays itself; every other character becomes an atom, 0x80 or
above, that says its class and in which of the patterns' own ranges it lies. So `\\p{L}` is a set of at most 255 codes,
and Python's `re`, which knows no `\\p`, runs patterns at full speed.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sporelm.text.unicode_classes import ASCII_CLASSES, CLASSES, HAN, PROPERTIES, class_table

SEPARATOR = "\xff"  # between pieces; no character is written so, and no set holds it
_FIRST_ATOM, _LAST_ATOM = 0x80, 0xFE
_SET = re.compile(r"\[(?:\\.|[^\]\\\[]|\[(?:\\.|[^\]\\])*\])*\]|\\p\{\w+\}|\\[sSdw]|[^\x00-\x7f]|\\.|.", re.DOTALL)
_MEMBER = re.compile(r"\\p\{\w+\}|\\.|.", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


_Region = frozenset[tuple[int, int]]  # the ranges beyond ASCII that one set names: (first, last)


@dataclass
class _CharSet:
    """A set of characters as a pattern writes it: classes, ASCII characters, ranges of others; or all but those."""

    negated: bool = False
    classes: set[str] = field(default_factory=set)
    ascii: set[int] = field(default_factory=set)
    region: _Region = frozenset()
    also: "_CharSet | None" = None  # a second set, in which the characters must be too

    def holds(self, letter: str, code: int | None, regions: Collection[_Region]) -> bool:
        """Whether a character is in the set: its class, its ASCII code or None, the regions it lies in."""
        found = letter in self.classes or code in self.ascii or self.region in regions
        return found != self.negated and (self.also is None or self.also.holds(letter, code, regions))

    def regions(self) -> set[_Region]:
        """The regions that this set asks about."""
        return {self.region} - {frozenset()} | (self.also.regions() if self.also else set())

    def add(self, first: int, last: int) -> None:
        self.ascii.update(range(first, min(last, 127) + 1))
        if last > 127:
            self.region |= {(max(first, 128), last)}


def _parse_set(source: str) -> _CharSet:
    """`source` is one class in brackets, `\\p{..}`, `\\s` and the like, or a character beyond ASCII."""
    if not source.startswith("["):
        return _parse_members(source)
    inner, _, second = source[1:-1].partition("&&")
    found = _parse_members(inner.removeprefix("^"))
    found.negated = inner.startswith("^")
    found.also = _parse_set(second) if second else None
    return found


def _parse_members(source: str) -> _CharSet:
    found = _CharSet()
    items = _MEMBER.findall(source)
    position = 0
    while position < len(items):
        item = items[position]
        name = item[3:-1] if item.startswith("\\p") else item[1:]
        if item == "\\S":
            found.negated = True
            found.classes |= set(PROPERTIES["s"])
        elif item == "\\p{Han}":
            found.region |= _parse_members(HAN).region
        elif item.startswith("\\") and name in PROPERTIES:
            found.classes |= set(PROPERTIES[name])
        elif items[position + 1 : position + 2] == ["-"] and position + 2 < len(items):
            found.add(_code(item), _code(items[position + 2]))
            position += 2
        else:
            found.add(_code(item), _code(item))
        position += 1
    return found


def _code(item: str) -> int:
    return ord(_ESCAPES.get(item[-1], item[-1]) if item.startswith("\\") else item)


class CharacterCodes:
    """The codes that a group of patterns needs, the patterns over them, and texts rewritten in them.

    Regions that only these patterns name divide the classes further; there is room for 127 atoms.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._sources = list(patterns)
        parsed = [_parse_set(part) for source in self._sources for part in _parts(source) if _is_set(part)]
        regions = sorted(set[_Region]().union(*(one.regions() for one in parsed)), key=sorted)
        self._atoms: list[tuple[str, Collection[_Region]]] = [(letter, ()) for letter in CLASSES]
        self._table = self._divide(regions) if regions else None

    def patterns(self) -> list[str]:
        """The patterns, in the order given, over codes."""
        return ["".join(map(self._rewritten, _parts(source))) for source in self._sources]

    def codes(self, text: str) -> str:
        """`text` with one code per character, as characters U+0000 to U+00FE. `text` holds no half surrogate pairs."""
        if text.isascii():
            return text
        if self._table is None:
            table = class_table() + np.uint8(_FIRST_ATOM)
            table[:_FIRST_ATOM] = np.arange(_FIRST_ATOM)
            self._table = table
        return self._table[np.frombuffer(text.encode("utf-32-le"), "<u4")].tobytes().decode("latin-1")

    def _divide(self, regions: list[_Region]) -> NDArray[np.uint8]:
        """Find the atoms: classes, divided by the regions. Gives code point -> code."""
        keys = class_table().astype(np.uint32)  # the class, and from bit 4 on one bit for each region
        for bit, region in enumerate(regions, 4):
            for first, last in region:
                keys[first : last + 1] |= np.uint32(1 << bit)
        codes = np.zeros(16 << len(regions), np.uint8)
        self._atoms = []
        for key in np.flatnonzero(np.bincount(keys[_FIRST_ATOM:])).tolist():
            codes[key] = _FIRST_ATOM + len(self._atoms)
            self._atoms.append((CLASSES[key & 15], [one for bit, one in enumerate(regions, 4) if key >> bit & 1]))
        assert len(self._atoms) <= _LAST_ATOM - _FIRST_ATOM + 1, f"{len(self._atoms)} kinds of characters"
        table: NDArray[np.uint8] = codes[keys]
        table[:_FIRST_ATOM] = np.arange(_FIRST_ATOM)
        return table

    def _rewritten(self, part: str) -> str:
        if part == "$":  # the end of a piece, not of a line
            return f"(?={SEPARATOR}|\\Z)"
        if not _is_set(part):
            return part
        wanted = _parse_set(part)
        codes = [code for code in range(128) if wanted.holds(ASCII_CLASSES[code], code, ())]
        atoms = enumerate(self._atoms, _FIRST_ATOM)
        codes += [code for code, (letter, regions) in atoms if wanted.holds(letter, None, regions)]
        members = "".join(map("\\x{:02x}".format, codes))
        return f"[{members}]" if codes else "(?!)"


def _parts(source: str) -> Iterator[str]:
    return iter(_SET.findall(source))


def _is_set(part: str) -> bool:
    return part.startswith(("[", "\\p", "\\s", "\\S", "\\d", "\\w")) or ord(part[0]) > 127
