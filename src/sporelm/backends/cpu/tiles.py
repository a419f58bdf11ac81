"""Register tiles of the kernels, which measuring decides: read from tiles.json, by target.

A tile is panels (vectors of rows) by tokens. There is one for each family of formats ("float", "block", "super"), and
one for a format by its name where that is faster.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

Tile = tuple[int, int]  # panels, tokens


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

    def few_of(self, kind: Tiled) -> Tile:
        return _find(self.few, kind)

    def many_of(self, kind: Tiled) -> Tile:
        return _find(self.many, kind)


def _find(tiles: tuple[tuple[str, Tile], ...], kind: Tiled) -> Tile:
    by_name = dict(tiles)
    return by_name.get(kind.name) or by_name[kind.family]


def tiles_from(values: Mapping[str, Any]) -> Tiles:
    """Tiles as tiles.json has them."""
    few, many = (tuple((name, (int(p), int(t))) for name, (p, t) in values[key].items()) for key in ("few", "many"))
    return Tiles(int(values["attention_rows"]), few, many)


@cache
def tiles_of(target: str) -> Tiles:
    """The measured tiles of a target."""
    return tiles_from(json.loads(Path(__file__).with_name("tiles.json").read_text("utf-8"))[target])
