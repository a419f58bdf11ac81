"""The tiles that were measured on this machine, in a file of the user's: {"sporelm tiles": [entry, ...]}.

An entry is for one target on one kind of CPU, and for the kernels of that time: {"target", "cpu", "kernels": digest,
"measured": "2026-11-21", "tiles": as in tiles.json}. Tiles that were measured with other kernels are not used. The file
is data: results do not depend on its content, and invalid content is ignored with one warning.
"""

import hashlib
import logging
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from sporelm import settings
from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit.object_cache import source_digest
from sporelm.backends.cpu.targets import CpuTarget
from sporelm.backends.cpu.targets.tiles import FAMILIES, Tiles, fitting_tiles, parse_tiles, shipped_tiles
from sporelm.backends.log_once import warn_once
from sporelm.backends.measurement_file import MeasurementFile

log = logging.getLogger(__name__)

LIST_KEY = "sporelm tiles"
SHIPPED = "shipped"  # the value of SPORE_CPU_TILES that disables the file

OPTIONAL_FIELDS = ("few_tokens", "wide", "prefetch_bytes")  # of `Tiles`: a file may leave them out


@dataclass(frozen=True)
class ActiveTiles:
    """The tiles of a target and, for `spore doctor`, their source."""

    tiles: Tiles
    source: str


def kernels_digest() -> str:
    """Return a digest of the kernels that tiles were measured with: their sources and their compiler."""
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return hashlib.sha256(f"{source_digest()} {versions}".encode()).hexdigest()[:32]


def tiles_in_use(target: CpuTarget) -> ActiveTiles:
    """Return the tiles measured on this machine for the target, or the shipped ones."""
    shipped = shipped_tiles(target.name, llvm.get_host_cpu_name())
    path = tiles_path()
    if path is None:
        return ActiveTiles(shipped, "shipped (SPORE_CPU_TILES)")
    try:
        entries = TILES_FILE.read(path)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        warn_once(log, f"{path} is ignored: {reason} ('spore bench tune' rewrites it; SPORE_CPU_TILES names it)")
        return ActiveTiles(shipped, f"shipped; {path} is ignored: {reason}")
    entry = entries.get((target.name, llvm.get_host_cpu_name()))
    if entry is None:
        return ActiveTiles(shipped, "shipped; run 'spore bench tune' to measure this machine")
    if entry["kernels"] != kernels_digest():
        when = f"the kernels have changed since tiles were measured here {entry['measured']}"
        return ActiveTiles(shipped, f"shipped; {when}: 'spore bench tune' measures again")
    tiles = parse_tiles(entry["tiles"])
    tiles = replace(tiles, **{name: getattr(shipped, name) for name in OPTIONAL_FIELDS if name not in entry["tiles"]})
    if not _fits_target(target, tiles):
        warn_once(
            log, f"{path} is ignored: its tiles do not fit target {target.name} ('spore bench tune' measures again)"
        )
        return ActiveTiles(shipped, f"shipped; {path} is ignored: its tiles do not fit this target")
    return ActiveTiles(tiles, f"measured here {entry['measured']} ({path})")


def _fits_target(target: CpuTarget, tiles: Tiles) -> bool:
    """Return whether every format's tiles are shipped ones or fit the registers."""
    for name, kind in FORMATS.items():
        for kernel in ("few", "many"):
            shipped, measured = (dict(of.of(kernel)) for of in (shipped_tiles(target.name), tiles))
            tile = measured.get(name) or measured[kind.family]
            if tile not in (*shipped.values(), *fitting_tiles(target, kernel, kind.family)):
                return False
    return True


def tiles_path() -> Path | None:
    """Return the path of measured tiles; None if the setting disables it."""
    return None if settings.CPU_TILES.value == SHIPPED else settings.CPU_TILES.path


def save_tiles(path: Path, target: CpuTarget, tiles: Tiles) -> None:
    """Save measured tiles, and keep those of other targets and CPUs. Raise OSError.

    Optional fields that equal the shipped ones are left out: later versions may ship better values.
    """
    cpu = llvm.get_host_cpu_name()
    shipped = shipped_tiles(target.name, cpu)
    values = tiles.as_json()
    for name in OPTIONAL_FIELDS:
        if set(getattr(tiles, name)) == set(getattr(shipped, name)):
            values.pop(name, None)
        else:
            values.setdefault(name, [] if name == "wide" else {})  # none at all, unlike the shipped ones
    entry = {
        "target": target.name,
        "cpu": cpu,
        "kernels": kernels_digest(),
        "measured": date.today().isoformat(),
        "tiles": values,
    }
    TILES_FILE.save(path, entry)


def _check_entry(entry: Any) -> dict[str, Any]:
    """Return an entry that has all its parts. Raise ValueError."""
    words = ("target", "cpu", "kernels", "measured")
    if not isinstance(entry, dict) or entry.keys() != {*words, "tiles"}:
        raise ValueError(f"an entry must have exactly {', '.join(words)} and tiles")
    for word in words:
        if not isinstance(entry[word], str) or len(entry[word]) > 80 or not entry[word].isprintable():
            raise ValueError(f"an entry's {word} is not a printable string of at most 80 characters")
    tiles = parse_tiles(entry["tiles"])
    unknown = {name for name, _ in (*tiles.few, *tiles.many)} - {*FORMATS, *FAMILIES}
    if unknown:
        raise ValueError(f"there is no format {min(unknown)!r:.40}")
    return entry


TILES_FILE = MeasurementFile(LIST_KEY, ("target", "cpu"), _check_entry)
