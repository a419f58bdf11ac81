"""Register tiles of the kernels, which are measured: read from tiles.json, by target.

A tile is panels (vectors of rows) by tokens. There is one for each family of formats ("float", "block", "super"), and
one for a single format where that is faster. `spore bench tune` measures them (tile_tuning.py); the tiles measured on
this machine (measured_tiles.py) precede the shipped ones. `few_tokens` is the number of tokens up to which the
few-token kernel, which streams the weights past all tokens, is faster than the many-token kernel. `prefetch_bytes` is
how far ahead the one-token kernel prefetches weights (0: not at all). `cpus` overrides values for a CPU model, by its
LLVM name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

TileSize = tuple[int, int]  # panels, tokens
DEFAULT_PREFETCH_BYTES = 4096  # for formats without a measured distance
MAX_PREFETCH_BYTES = 32 << 10
FEW_TOKENS = 16  # tokens up to which the few-token kernel is used where nothing else was measured
FAMILIES = ("block", "super", "float")
# Numbers of panels, then of tokens, which divide a block of many; panels of many are gate's and up's
TILE_CHOICES = {"few": ((1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 10, 12)), "many": ((2, 4, 6), (1, 2, 3, 4, 5, 6, 8))}
MAX_TOKENS = 512  # of a step
ATTENTION_ROWS = (2, 3, 4, 5, 6, 8, 10, 12)


class TiledFormat(Protocol):
    """The selection key of a tile."""

    name: str
    family: str


@dataclass(frozen=True)
class Tiles:
    """The tiles of a target; results do not depend on them."""

    attention_rows: int  # query rows of the attention kernel for many tokens
    few: tuple[
        tuple[str, TileSize], ...
    ]  # by format or family: the few-token kernel's; the one-token kernel uses its panels
    many: tuple[tuple[str, TileSize], ...]
    few_tokens: tuple[tuple[str, int], ...] = ()  # by format or family
    wide: tuple[str, ...] = ()  # formats that the many-token kernel multiplies in 16 bits
    prefetch_bytes: tuple[tuple[str, int], ...] = ()  # by format or family; 0: no prefetch

    def few_of(self, kind: TiledFormat) -> TileSize:
        return _find_tile(self.few, kind)

    def many_of(self, kind: TiledFormat) -> TileSize:
        return _find_tile(self.many, kind)

    def few_tokens_of(self, kind: TiledFormat) -> int:
        """Return the number of tokens up to which the few-token kernel is faster than the many-token kernel."""
        by_name = dict(self.few_tokens)
        return by_name.get(kind.name) or by_name.get(kind.family, FEW_TOKENS)

    def prefetch_bytes_of(self, kind: TiledFormat) -> int:
        """Return the distance at which the one-token kernel prefetches weights; 0 for no prefetch."""
        by_name = dict(self.prefetch_bytes)
        return by_name.get(kind.name, by_name.get(kind.family, DEFAULT_PREFETCH_BYTES))

    def of(self, kernel: str) -> tuple[tuple[str, TileSize], ...]:
        """Return the tiles of the kernel "few" or "many"."""
        return self.few if kernel == "few" else self.many

    def changed(self, kernel: str, tiles: Mapping[str, TileSize]) -> "Tiles":
        """Return a copy with other tiles of the kernel "few" or "many"."""
        pairs = tuple(tiles.items())
        return replace(self, few=pairs) if kernel == "few" else replace(self, many=pairs)

    def as_json(self) -> dict[str, Any]:
        """Return the tiles in the form of tiles.json."""
        few, many = ({name: list(tile) for name, tile in tiles} for tiles in (self.few, self.many))
        tokens = {"few_tokens": dict(self.few_tokens)} if self.few_tokens else {}
        wide = {"wide": list(self.wide)} if self.wide else {}
        prefetch = {"prefetch_bytes": dict(self.prefetch_bytes)} if self.prefetch_bytes else {}
        return {"attention_rows": self.attention_rows, "few": few, "many": many} | tokens | wide | prefetch


def registers(target: Any) -> int:
    """Return the vector registers of a target."""
    return 32 if target.lanes == 16 or "+avx512vl" in target.features or "neon" in target.features else 16


def fitting_tiles(target: Any, kernel: str, family: str) -> list[TileSize]:
    """Return the tiles whose sums fit a target's registers. LLVM fails on much larger ones and aborts the process."""
    sums = 1 if family == "float" else 2  # integers are summed separately, then scaled
    room = registers(target) + 4  # some operands come from memory; the assembly shows what does not fit
    panels, tokens = TILE_CHOICES[kernel]
    return [(p, t) for p in panels for t in tokens if sums * p * t + p <= room]


def _find_tile(tiles: tuple[tuple[str, TileSize], ...], kind: TiledFormat) -> TileSize:
    by_name = dict(tiles)
    return by_name.get(kind.name) or by_name[kind.family]


def parse_tiles(values: Mapping[str, Any]) -> Tiles:
    """Parse tiles in the form of tiles.json. Raise ValueError for an invalid tile, or for a family without one."""
    required, optional = {"attention_rows", "few", "many"}, {"few_tokens", "wide", "prefetch_bytes"}
    if not isinstance(values, Mapping) or values.keys() - optional != required:
        raise ValueError(f"tiles must have {', '.join(sorted(required))}, and may have {', '.join(sorted(optional))}")
    few, many = (_parse_by_name(values[key], *TILE_CHOICES[key]) for key in ("few", "many"))
    few_tokens = _parse_numbers(values, "few_tokens", 1, MAX_TOKENS)
    prefetch_bytes = _parse_numbers(values, "prefetch_bytes", 0, MAX_PREFETCH_BYTES)
    wide = values.get("wide", [])
    if not isinstance(wide, list) or not all(isinstance(name, str) for name in wide):
        raise ValueError("wide is a list of formats")
    rows = _parse_number(values["attention_rows"], 1, max(ATTENTION_ROWS))
    return Tiles(rows, few, many, few_tokens, tuple(wide), prefetch_bytes)


def _parse_numbers(values: Mapping[str, Any], key: str, minimum: int, maximum: int) -> tuple[tuple[str, int], ...]:
    """Parse numbers by name; none if the key is missing."""
    by_name = values.get(key, {})
    if not isinstance(by_name, Mapping) or not all(isinstance(name, str) for name in by_name):
        raise ValueError(f"{key} must map format or family names to integers (got {by_name!r:.80})")
    return tuple((name, _parse_number(number, minimum, maximum)) for name, number in by_name.items())


def _parse_by_name(values: Any, panels: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[tuple[str, TileSize], ...]:
    """Parse tiles by name, with these numbers of panels and tokens."""
    if not isinstance(values, Mapping) or not values.keys() >= set(FAMILIES):
        raise ValueError(f"tiles are by name, {', '.join(FAMILIES)} among them")
    found = []
    for name, tile in values.items():
        if not isinstance(name, str) or not isinstance(tile, list | tuple) or len(tile) != 2:
            raise ValueError(f"{tile!r:.80} is not a tile of panels and tokens")
        pair = _parse_number(tile[0], 1, max(panels)), _parse_number(tile[1], 1, max(tokens))
        if pair[0] not in panels or pair[1] not in tokens:
            raise ValueError(f"there is no kernel of {pair[0]} panels by {pair[1]} tokens")
        found.append((name, pair))
    return tuple(found)


def _parse_number(value: Any, minimum: int, maximum: int) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        raise ValueError(f"{value!r:.80} is not a number from {minimum} to {maximum}")
    return value


@cache
def shipped_tiles(target: str, cpu: str = "") -> Tiles:
    """Return the shipped tiles of a target, with the overrides for a CPU model (LLVM's name), if any."""
    values = json.loads(Path(__file__).with_name("tiles.json").read_text("utf-8"))[target]
    by_cpu = values.pop("cpus", {})
    return parse_tiles(values | by_cpu.get(cpu, {}))
