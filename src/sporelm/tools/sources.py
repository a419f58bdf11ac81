"""Model files as the tools take them: by path, pattern or stored name; split and sharded models opened as one."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import glob, has_magic
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.weights.gguf import GgufFile, open_gguf
from sporelm.weights.gguf.limits import MAGIC
from sporelm.weights.mapped import Closing, byte_array, map_file
from sporelm.weights.safetensors import SafetensorsFiles, open_safetensors

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class TensorEntry(NamedTuple):
    """One tensor of a source: its type by name, logical row-major shape, and its bytes in file number `part`."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    part: int

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)


class Source(Closing):
    """An open model: a GGUF file, all its splits, a safetensors file, or a Hugging Face folder of them.

    kind       "gguf" or "safetensors"
    files      the reader that checked it
    tensors    name -> TensorEntry, in the order of the files
    """

    def __init__(self, path: Path, files: GgufFile | SafetensorsFiles) -> None:
        self.path, self.files = path, files
        self.kind = "gguf" if isinstance(files, GgufFile) else "safetensors"
        self.tensors: dict[str, TensorEntry] = {
            name: TensorEntry(name, info.type_name, info.shape, info.offset, info.nbytes, info.part)
            for name, info in files.tensors.items()
        }
        self._mapped: dict[int, memoryview] = {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.files.metadata

    @property
    def kinds(self) -> Mapping[str, str]:
        """The type of each metadata value, as GGUF names them; safetensors has strings only."""
        if isinstance(self.files, GgufFile):
            return self.files.kinds
        return dict.fromkeys(self.files.metadata, "str")

    @property
    def nbytes(self) -> int:
        """Size of all files together."""
        return sum(len(self.mapped(part)) for part in range(len(self.files.paths)))

    def mapped(self, part: int) -> memoryview:
        """All bytes of file number `part`."""
        if part not in self._mapped:
            self._mapped[part] = map_file(self.files.paths[part])
        return self._mapped[part]

    def is_big(self, part: int) -> bool:
        """Whether file number `part` is big-endian."""
        # The version is a small number, so its first two bytes are 0 in that byte order alone.
        return self.kind == "gguf" and bytes(self.mapped(part)[4:6]) == b"\0\0"

    def raw(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as they lie in the file: uint8 [nbytes], a view."""
        entry = self.tensors[name]
        found = byte_array(self.mapped(entry.part), entry.offset, entry.nbytes)
        if len(found) != entry.nbytes:
            raise ModelFileError(f"{self.files.paths[entry.part]} became shorter while it was open")
        return found

    def close(self) -> None:
        self.files.close()
        self._mapped.clear()


def open_source(path: Path) -> Source:
    """Open a model file or folder. Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    return Source(path, open_safetensors(path) if is_safetensors(path) else open_gguf(path))


def is_safetensors(path: Path) -> bool:
    """Whether a path is to be read as safetensors: a folder, or a file of that name which is no GGUF file."""
    if path.is_dir():
        return True
    if path.suffix.lower() != ".safetensors" or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) != MAGIC


def find_models(words: Iterable[str], missing: Callable[[ModelNotFound], None] | None = None) -> list[Path]:
    """The models that paths, patterns (`*`, `?`, `[...]`, `**`) and stored names stand for, each once, in order.

    Of a split model only the first file is kept where it is among them. Raises ModelNotFound for a word without any,
    or hands it to `missing` and goes on.
    """
    found: dict[Path, None] = {}
    for word in words:
        try:
            for path in _matches(word):
                found[path] = None
        except ModelNotFound as reason:
            if missing is None:
                raise
            missing(reason)
    return [path for path in found if not _follows(path, found)]


def _matches(word: str) -> Iterator[Path]:
    if not word or "\0" in word:
        raise ModelNotFound(f"{word[:80]!r} cannot be a path")
    path = Path(word).expanduser()
    if path.exists():
        yield path
    elif word.startswith("hf:"):
        yield _stored(word)
    elif has_magic(word):
        paths = sorted(glob(str(path), recursive=True))
        if not paths:
            raise ModelNotFound(f"no file matches {word[:200]!r}")
        yield from map(Path, paths)
    elif re.fullmatch(r"[\w.-]+", word):
        yield _stored(word)
    else:
        raise ModelNotFound(
            f"no model at {word[:200]!r}: give a .gguf or .safetensors file, a folder, or a stored name"
        )


def _stored(name: str) -> Path:
    """A model of the store. Raises ModelNotFound, with the name that is nearest."""
    from sporelm.weights import store

    found = store.find(name) if name.startswith("hf:") or store.is_name(name) else None
    if found is None:
        near = store.did_you_mean(name)
        raise ModelNotFound(
            f"no model at {name[:200]!r}{near}: give a .gguf or .safetensors file, a folder, or a stored name"
        )
    return found


def _follows(path: Path, among: Mapping[Path, None]) -> bool:
    """Whether this is a later split of a model whose first file is there too."""
    named = _SPLIT.fullmatch(path.name)
    if named is None or int(named["number"]) == 1:
        return False
    return path.with_name(f"{named['stem']}-00001-of-{named['count']}.gguf") in among


def matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Those names that fit one of the patterns; all of them without patterns.

    In a pattern `*` is any text, `?` any sign, `[...]` one of some, `|` parts alternatives, and `!` in front of all
    turns it round. Upper and lower case differ.
    """
    kept = list(names)
    wanted = list(patterns)
    if not wanted:
        return kept
    return [name for name in kept if any(_fits(name, pattern) for pattern in wanted)]


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("!"):
        return not _fits(name, pattern[1:])
    return any(fnmatchcase(name, part) for part in pattern.split("|"))
