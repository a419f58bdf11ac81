"""The tiles that were measured on this machine, in a file of the user's: {"sporelm tiles": [entry, ...]}.

An entry is of one target on one kind of CPU, and of the kernels as they were then: {"target", "cpu", "kernels": digest,
"measured": "2026-11-21", "tiles": as in tiles.json}. Tiles that were measured with other kernels are not used. The
file is data: whatever it holds, results stay the same, and what makes no sense is ignored with one warning.
"""

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from sporelm import settings
from sporelm.backends.cpu.formats import FORMATS
from sporelm.backends.cpu.jit.cache import source_digest
from sporelm.backends.cpu.targets import Target
from sporelm.backends.cpu.tiles import FAMILIES, Tiles, fitting, tiles_from, tiles_of

log = logging.getLogger(__name__)
told: set[str] = set()  # what was logged already, once a process

HEAD = "sporelm tiles"
LARGEST = 1 << 20  # bytes; a file of a hundred CPUs is smaller
SHIPPED = "shipped"  # the value of SPORE_CPU_TILES for no file


@dataclass(frozen=True)
class InUse:
    """The tiles of a target and, for `spore doctor`, where they come from."""

    tiles: Tiles
    source: str


def kernels_digest() -> str:
    """Names the kernels that tiles were measured with: their sources and what compiles them."""
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info}"
    return hashlib.sha256(f"{source_digest()} {versions}".encode()).hexdigest()[:32]


def tiles_in_use(target: Target) -> InUse:
    """The tiles measured on this machine for the target, or those that are shipped for it."""
    shipped = tiles_of(target.name)
    path = place()
    if path is None:
        return InUse(shipped, "shipped (SPORE_CPU_TILES)")
    try:
        entries = _read(path)
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _warn(f"{path} is ignored: {reason} ('spore bench tune' writes it anew; SPORE_CPU_TILES names it)")
        return InUse(shipped, f"shipped; {path} is ignored: {reason}")
    entry = entries.get((target.name, llvm.get_host_cpu_name()))
    if entry is None:
        return InUse(shipped, "shipped; 'spore bench tune' measures on this machine")
    if entry["kernels"] != kernels_digest():
        when = f"those measured here {entry['measured']} are of other kernels"
        return InUse(shipped, f"shipped; {when}: 'spore bench tune' measures anew")
    tiles = tiles_from(entry["tiles"])
    if not _possible(target, tiles):
        _warn(f"{path} is ignored: its tiles do not fit target {target.name} ('spore bench tune' measures anew)")
        return InUse(shipped, f"shipped; {path} is ignored: its tiles do not fit this target")
    return InUse(tiles, f"measured here {entry['measured']} ({path})")


def _possible(target: Target, tiles: Tiles) -> bool:
    """Whether every format's tiles are shipped ones or fit the registers."""
    for name, kind in FORMATS.items():
        for kernel in ("few", "many"):
            shipped, measured = (dict(of.of(kernel)) for of in (tiles_of(target.name), tiles))
            tile = measured.get(name) or measured[kind.family]
            if tile not in (*shipped.values(), *fitting(target, kernel, kind.family)):
                return False
    return True


def place() -> Path | None:
    """Where measured tiles are kept; None where the setting says that none are."""
    return None if settings.CPU_TILES.value == SHIPPED else settings.CPU_TILES.path


def save(path: Path, target: Target, tiles: Tiles) -> None:
    """Keep what was measured, beside what the file has of other targets and CPUs. Raises OSError."""
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError, RecursionError):  # a damaged file is replaced
        entries = _read(path)
    key = (target.name, llvm.get_host_cpu_name())
    entries[key] = dict(zip(("target", "cpu"), key, strict=True)) | {
        "kernels": kernels_digest(),
        "measured": date.today().isoformat(),
        "tiles": tiles.as_json(),
    }
    with writing(path) as part:
        part.write_text(json.dumps({HEAD: list(entries.values())}, indent=1) + "\n", "utf-8")


@contextlib.contextmanager
def writing(path: Path, keep: bool = True) -> Iterator[Path]:
    """A file beside `path` that takes its place at the end, unless something fails or not `keep`. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        if keep:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


def _read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Entries by target and CPU; none where there is no file. Raises OSError, ValueError, RecursionError."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST} bytes")
    try:
        values = json.loads(content.decode("utf-8"))
    except ValueError:
        raise ValueError("it is no JSON") from None
    if not isinstance(values, dict) or not isinstance(values.get(HEAD), list):
        raise ValueError(f"it has no list {HEAD!r}")
    return {(entry["target"], entry["cpu"]): entry for entry in map(_checked, values[HEAD])}


def _checked(entry: Any) -> dict[str, Any]:
    """An entry that has all its parts. Raises ValueError."""
    words = ("target", "cpu", "kernels", "measured")
    if not isinstance(entry, dict) or entry.keys() != {*words, "tiles"}:
        raise ValueError(f"an entry has other parts than {', '.join(words)} and tiles")
    for word in words:
        if not isinstance(entry[word], str) or len(entry[word]) > 80 or not entry[word].isprintable():
            raise ValueError(f"an entry's {word} is no short text")
    tiles = tiles_from(entry["tiles"])
    unknown = {name for name, _ in (*tiles.few, *tiles.many)} - {*FORMATS, *FAMILIES}
    if unknown:
        raise ValueError(f"there is no format {min(unknown)!r:.40}")
    return entry


def _warn(message: str) -> None:
    """Say it, once a process."""
    if message not in told:
        told.add(message)
        log.warning("%s", message)
