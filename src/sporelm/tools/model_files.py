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
from sporelm.files.gguf import GgufFile, open_gguf
from sporelm.files.gguf.gguf_limits import MAGIC
from sporelm.files.memory_map import Closing, byte_array, map_file
from sporelm.files.safetensors import SafetensorsFiles, open_safetensors

SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class TensorEntry(NamedTuple):
    """One tensor of a source: its type by name, logical row-major shape, and its bytes in file number `file_index`."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file_index: int

    @property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)


class ModelFiles(Closing):
    """An open model: a GGUF file, all its splits, a safetensors file, or a Hugging Face folder of them.

    kind       "gguf" or "safetensors"
    files      the reader that checked it
    tensors    name -> TensorEntry, in the order of the files
    """

    def __init__(self, path: Path, files: GgufFile | SafetensorsFiles) -> None:
        self.path = path
        self.files = files
        self.kind = "gguf" if isinstance(files, GgufFile) else "safetensors"
        self.tensors: dict[str, TensorEntry] = {
            name: TensorEntry(name, info.type_name, info.shape, info.offset, info.nbytes, info.file_index)
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
        found = byte_array(self.mapped(entry.file_index), entry.offset, entry.nbytes)
        if len(found) != entry.nbytes:
            raise ModelFileError(f"{self.files.paths[entry.file_index]} became shorter while it was open")
        return found

    def close(self) -> None:
        self.files.close()
        self._mapped.clear()


def open_model_files(path: Path, *, needs_data: bool = True) -> ModelFiles:
    """Open a model file or folder; without `needs_data` also a GGUF file that was written with `--no-data`.

    Raises ModelNotFound, ModelFileError, UnsupportedModel.
    """
    files = open_safetensors(path) if is_safetensors(path) else open_gguf(path, needs_data=needs_data)
    return ModelFiles(path, files)


def is_safetensors(path: Path) -> bool:
    """Return whether a path is read as safetensors: a folder, or a file of that name that is not a GGUF file."""
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
            for path in _expand_word(word):
                found[path] = None
        except ModelNotFound as reason:
            if missing is None:
                raise
            missing(reason)
    return [path for path in found if not _is_later_split(path, found)]


def _expand_word(word: str) -> Iterator[Path]:
    if not word or "\0" in word:
        raise ModelNotFound(f"{word[:80]!r} cannot be a path")
    path = Path(word).expanduser()
    if path.exists():
        yield path
    elif word.startswith("hf:"):
        yield _find_stored(word)
    elif has_magic(word):
        paths = sorted(glob(str(path), recursive=True))
        if not paths:
            raise ModelNotFound(f"no file matches {word[:200]!r}")
        yield from map(Path, paths)
    elif re.fullmatch(r"[\w.-]+", word):
        yield _find_stored(word)
    else:
        raise ModelNotFound(
            f"no model at {word[:200]!r}: give a .gguf or .safetensors file, a folder, or a stored name"
        )


def _find_stored(name: str) -> Path:
    """A model of the store. Raises ModelNotFound, with the name that is nearest."""
    from sporelm.files import store

    found = store.find(name) if name.startswith("hf:") or store.is_name(name) else None
    if found is None:
        near = store.suggest_name(name)
        raise ModelNotFound(
            f"no model at {name[:200]!r}{near}: give a .gguf or .safetensors file, a folder, or a stored name"
        )
    return found


def _is_later_split(path: Path, among: Mapping[Path, None]) -> bool:
    """Whether this is a later split of a model whose first file is there too."""
    named = SPLIT_NAME.fullmatch(path.name)
    if named is None or int(named["number"]) == 1:
        return False
    return path.with_name(f"{named['stem']}-00001-of-{named['count']}.gguf") in among


def filter_names(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match one of the patterns, or all names without patterns.

    In a pattern `*` is any text, `?` any character, `[...]` one of several, `|` separates alternatives, and a leading
    `!` negates the pattern. Matching is case-sensitive.
    """
    candidates = list(names)
    accepted = list(patterns)
    if not accepted:
        return candidates
    return [name for name in candidates if any(_matches_pattern(name, pattern) for pattern in accepted)]


def _matches_pattern(name: str, pattern: str) -> bool:
    if pattern.startswith("!"):
        return not _matches_pattern(name, pattern[1:])
    return any(fnmatchcase(name, part) for part in pattern.split("|"))
