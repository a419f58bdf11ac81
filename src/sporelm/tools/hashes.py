"""SHA-256 of files and of their tensors, and lists of them.

A line of a list is `sha256 HEX FILE` or `sha256 HEX FILE:TENSOR`, as llama.cpp's gguf-hash writes; the lines of
sha256sum, which leave the first word out, are read too. Lines of other algorithms are left aside.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.tools.findings import ERROR, WARNING, Finding
from sporelm.tools.sources import Source
from sporelm.weights.resident import drop_pages
from sporelm.weights.text_file import read_text_file

CHUNK_BYTES = 4 << 20
LONGEST_LIST = 64 << 20  # bytes
_LINE = re.compile(r"(?:sha256[ \t]+)?([0-9a-fA-F]{64})[ \t]+\*?(\S.*)")


def hashes_of(source: Source, report: Callable[[int], None] | None = None) -> dict[str, str]:
    """The hashes of every file and every tensor: FILE or FILE:TENSOR -> hex. `report` is told of bytes read."""
    found = {}
    for part, path in enumerate(source.files.paths):
        found[path.name] = _hex(np.frombuffer(source.mapped(part), np.uint8), report)
    for name, entry in source.tensors.items():
        found[f"{source.files.paths[entry.part].name}:{name}"] = _hex(source.raw(name), report)
    return found


def _hex(data: NDArray[np.uint8], report: Callable[[int], None] | None) -> str:
    """The hash of mapped bytes, uint8 [n]; their pages do not stay."""
    state = sha256()
    for start in range(0, len(data), CHUNK_BYTES):
        part = data[start : start + CHUNK_BYTES]
        state.update(part.data)
        drop_pages(part)
        if report:
            report(len(part))
    return state.hexdigest()


def as_lines(hashes: Mapping[str, str]) -> Iterator[str]:
    """A list of hashes."""
    for label, value in hashes.items():
        yield f"sha256    {value}  {label}"


def read_list(path: Path) -> dict[str, str]:
    """A list of hashes: FILE or FILE:TENSOR -> hex. Raises RequestError for a file that is none."""
    lines = read_text_file(path, "the list of hashes", LONGEST_LIST).splitlines()
    found = {match[2]: match[1].lower() for line in lines if (match := _LINE.fullmatch(line.strip()))}
    if not found:
        raise RequestError(f"{path} holds no line 'sha256 HEX FILE' or 'HEX FILE'")
    return found


def compare(hashes: Mapping[str, str], wanted: Mapping[str, str], files: set[str]) -> Iterator[Finding]:
    """What differs from a list. Its lines about other files than those named `files` are left aside."""
    used = set()
    for label, value in wanted.items():
        name = _label(label, files)
        if name is None:
            continue
        used.add(name)
        if name not in hashes:
            yield Finding(ERROR, "hash", name, "is in the list of hashes, and not in the model")
        elif hashes[name] != value:
            yield Finding(ERROR, "hash", name, f"sha256 is {hashes[name]}, the list has {value}")
    if not used:
        yield Finding(ERROR, "hash", "", f"the list of hashes says nothing of {', '.join(sorted(files)[:3])}")
    elif any(":" in name for name in used) and (unlisted := [name for name in hashes if name not in used]):
        yield Finding(WARNING, "hash", "", f"the list lacks {len(unlisted)} of {len(hashes)}, first {unlisted[0]}")


def _label(label: str, files: set[str]) -> str | None:
    """A list's name of a file or tensor as it is called here: without folders before the file; None if another's."""
    for name in files:
        at = label.find(name)
        if at >= 0 and (at == 0 or label[at - 1] in "/\\") and label[at + len(name) : at + len(name) + 1] in ("", ":"):
            return label[at:]
    return None
