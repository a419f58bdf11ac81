"""The hash of all that the CPU's kernels are traced from, which is part of their keys in the cache of compiled code."""

import hashlib
from functools import cache
from pathlib import Path

from sporelm.backends.file_cache import ObjectCache

__all__ = ["ObjectCache", "source_digest"]

QUANT_TABLES = (
    "grids.npz",
    "grids.py",
    "nonuniform_levels.py",
    "nf4.py",
)  # of `quant`, from which kernels take levels and code books
RANK_PROTOCOL = ("parking.py", "shared_memory_layout.py")  # of `distributed`, for the kernels of collectives


@cache
def source_digest() -> str:
    """Return the hash of every file that kernels are traced from: this back-end's sources, the tables of number
    formats, and the protocol of ranks."""
    package = Path(__file__).parents[3]
    own = (package / "backends" / "cpu").rglob("*.py")
    digest = hashlib.sha256()
    tables = (package / "quant" / name for name in QUANT_TABLES)
    protocol = (package / "distributed" / name for name in RANK_PROTOCOL)
    for path in sorted((*own, *tables, *protocol)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
