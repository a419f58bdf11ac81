"""Register tiles of the kernels, which measuring decides: read from tiles.json, by target.

A tile is panels (vectors of rows) by tokens. There is one for each family of formats ("float", "block", "super"), and
one for a format by its name where that is faster. `spore bench tune` measures them (tune.py); what it found on this
machine comes before what is shipped (tiles_file.py). `few_tokens` says up to how many tokens the few-token kernel,
which streams the weights past all of them, is faster than the one for many.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

Tile = tuple[int, int]  # panels, tokens
FEW_TOKENS = 16  # up to which the few-token kernel is taken where nothing else was measured
FAMILIES = ("block", "super", "float")
# What kernels are made with: panels, then tokens, which divide a block of many; panels of many are gate's and up's
CHOICES = {"few": ((1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 10, 12)), "many": ((2, 4, 6), (1, 2, 3, 4, 5, 6, 8))}
MOST_TOKENS = 512  # of a step
ROWS = (2, 3, 4, 5, 6, 8, 10, 12)


class Tiled(Protocol):
    """What a tile is chosen by."""

    name: str
    family: str


@dataclass(frozen=True)
class Tiles:
    """The tiles of a target; results do not depend on them."""

    attention_rows: int  # query rows of the attention kernel for many tokens
    few: tuple[tuple[str, Tile], ...]  # by format or family: the few-token kernel's; one token uses its panels
    many: tuple[tuple[str, Tile], ...]
    few_tokens: tuple[tuple[str, int], ...] = ()  # by format or family

    def few_of(self, kind: Tiled) -> Tile:
        return _find(self.few, kind)

    def many_of(self, kind: Tiled) -> Tile:
        return _find(self.many, kind)

    def few_tokens_of(self, kind: Tiled) -> int:
        """Tokens up to which the few-token kernel is faster than the one for many."""
        by_name = dict(self.few_tokens)
        return by_name.get(kind.name) or by_name.get(kind.family, FEW_TOKENS)

    def of(self, kernel: str) -> tuple[tuple[str, Tile], ...]:
        """Those of the kernel "few" or "many"."""
        return self.few if kernel == "few" else self.many

    def changed(self, kernel: str, tiles: Mapping[str, Tile]) -> "Tiles":
        """With other tiles of the kernel "few" or "many"."""
        pairs = tuple(tiles.items())
        return replace(self, few=pairs) if kernel == "few" else replace(self, many=pairs)

    def as_json(self) -> dict[str, Any]:
        """As tiles.json has them."""
        few, many = ({name: list(tile) for name, tile in tiles} for tiles in (self.few, self.many))
        tokens = {"few_tokens": dict(self.few_tokens)} if self.few_tokens else {}
        return {"attention_rows": self.attention_rows, "few": few, "many": many} | tokens


def registers(target: Any) -> int:
    """Vector registers of a target."""
    return 32 if target.lanes == 16 or "+avx512vl" in target.features or "neon" in target.features else 16


def fitting(target: Any, kernel: str, family: str) -> list[Tile]:
    """Tiles whose sums a target's registers could hold. LLVM gives up on much larger ones, and the process with it."""
    sums = 1 if family == "float" else 2  # integers are summed apart, then scaled
    room = registers(target) + 4  # some operands come from memory; what does not fit is found in the assembly
    panels, tokens = CHOICES[kernel]
    return [(p, t) for p in panels for t in tokens if sums * p * t + p <= room]


def _find(tiles: tuple[tuple[str, Tile], ...], kind: Tiled) -> Tile:
    by_name = dict(tiles)
    return by_name.get(kind.name) or by_name[kind.family]


def tiles_from(values: Mapping[str, Any]) -> Tiles:
    """Tiles as tiles.json has them. Raises ValueError for what is no tile, or for a family without one."""
    if not isinstance(values, Mapping) or values.keys() - {"few_tokens"} != {"attention_rows", "few", "many"}:
        raise ValueError("tiles are attention_rows, few, many and, where it was measured, few_tokens")
    few, many = (_by_name(values[key], *CHOICES[key]) for key in ("few", "many"))
    tokens = values.get("few_tokens", {})
    if not isinstance(tokens, Mapping) or not all(isinstance(name, str) for name in tokens):
        raise ValueError("few_tokens are numbers by name")
    few_tokens = tuple((name, _number(number, MOST_TOKENS)) for name, number in tokens.items())
    return Tiles(_number(values["attention_rows"], max(ROWS)), few, many, few_tokens)


def _by_name(values: Any, panels: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[tuple[str, Tile], ...]:
    """Tiles by name, of these numbers of panels and tokens."""
    if not isinstance(values, Mapping) or not values.keys() >= set(FAMILIES):
        raise ValueError(f"tiles are by name, {', '.join(FAMILIES)} among them")
    found = []
    for name, tile in values.items():
        if not isinstance(name, str) or not isinstance(tile, list | tuple) or len(tile) != 2:
            raise ValueError(f"{tile!r:.80} is no tile of panels and tokens")
        pair = _number(tile[0], max(panels)), _number(tile[1], max(tokens))
        if pair[0] not in panels or pair[1] not in tokens:
            raise ValueError(f"there is no kernel of {pair[0]} panels by {pair[1]} tokens")
        found.append((name, pair))
    return tuple(found)


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{value!r:.80} is no number from 1 to {most}")
    return value


@cache
def tiles_of(target: str) -> Tiles:
    """The shipped tiles of a target."""
    return tiles_from(json.loads(Path(__file__).with_name("tiles.json").read_text("utf-8"))[target])
