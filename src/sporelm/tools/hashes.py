"""SHA-256 of files and of their tensors, and lists of hashes.

A line of a list is `sha256 HEX FILE` or `sha256 HEX FILE:TENSOR`, as llama.cpp's gguf-hash writes it. Lines of
sha256sum, without the first word, are accepted too. Lines of other algorithms are ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.memory_residency import drop_pages
from sporelm.errors import RequestError
from sporelm.files.text_file import read_text_file
from sporelm.tools.diagnostics import ERROR, WARNING, Diagnostic
from sporelm.tools.model_files import ModelFiles

CHUNK_BYTES = 4 << 20
MAX_LIST_BYTES = 64 << 20  # bytes
_LINE = re.compile(r"(?:sha256[ \t]+)?([0-9a-fA-F]{64})[ \t]+\*?(\S.*)")


def compute_hashes(source: ModelFiles, report: Callable[[int], None] | None = None) -> dict[str, str]:
    """Hash every file and every tensor: FILE or FILE:TENSOR -> hex. `report` receives the bytes read."""
    found = {}
    for part, path in enumerate(source.files.paths):
        found[path.name] = _hash_bytes(np.frombuffer(source.mapped(part), np.uint8), report)
    for name, entry in source.tensors.items():
        found[f"{source.files.paths[entry.file_index].name}:{name}"] = _hash_bytes(source.raw(name), report)
    return found


def _hash_bytes(data: NDArray[np.uint8], report: Callable[[int], None] | None) -> str:
    """Return the hash of mapped bytes, uint8 [n], and drop their pages from memory."""
    state = sha256()
    for start in range(0, len(data), CHUNK_BYTES):
        part = data[start : start + CHUNK_BYTES]
        state.update(part.data)
        drop_pages(part)
        if report:
            report(len(part))
    return state.hexdigest()


def format_hash_list(hashes: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a list of hashes."""
    for label, value in hashes.items():
        yield f"sha256    {value}  {label}"


def read_hash_list(path: Path) -> dict[str, str]:
    """Read a list of hashes: FILE or FILE:TENSOR -> hex. Raises RequestError for a file without hashes."""
    lines = read_text_file(path, "the list of hashes", MAX_LIST_BYTES).splitlines()
    found = {match[2]: match[1].lower() for line in lines if (match := _LINE.fullmatch(line.strip()))}
    if not found:
        raise RequestError(f"{path} holds no line 'sha256 HEX FILE' or 'HEX FILE'")
    return found


def compare_hashes(hashes: Mapping[str, str], expected: Mapping[str, str], files: set[str]) -> Iterator[Diagnostic]:
    """Yield the differences from a list of hashes. Lines about files not named in `files` are ignored."""
    used = set()
    for label, value in expected.items():
        name = _normalize_label(label, files)
        if name is None:
            continue
        used.add(name)
        if name not in hashes:
            yield Diagnostic(ERROR, "hash", name, "is in the list of hashes, and not in the model")
        elif hashes[name] != value:
            yield Diagnostic(ERROR, "hash", name, f"sha256 is {hashes[name]}, the list has {value}")
    if not used:
        yield Diagnostic(ERROR, "hash", "", f"the list of hashes says nothing of {', '.join(sorted(files)[:3])}")
    elif any(":" in name for name in used) and (unlisted := [name for name in hashes if name not in used]):
        yield Diagnostic(WARNING, "hash", "", f"the list lacks {len(unlisted)} of {len(hashes)}, first {unlisted[0]}")


def _normalize_label(label: str, files: set[str]) -> str | None:
    """Return a list's label of a file or tensor without the folders before the file; None for other files."""
    for name in files:
        at = label.find(name)
        if at >= 0 and (at == 0 or label[at - 1] in "/\\") and label[at + len(name) : at + len(name) + 1] in ("", ":"):
            return label[at:]
    return None
