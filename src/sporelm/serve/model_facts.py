"""What a model's files say of it, for those who ask what there is: read from their headers, without loading it."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelError
from sporelm.models import open_model
from sporelm.serve.config import ModelSpec
from sporelm.text.hf_folder import Folder
from sporelm.weights.gguf import GgufFile, StringArray
from sporelm.weights.identity import identity_of
from sporelm.weights.load import ModelSource
from sporelm.weights.store import resolve

LONGEST_ARRAY = 5  # elements of an array that is shown to those who did not ask for all
MOST_KEPT = 64
TEMPLATES = "tokenizer.chat_template"


@dataclass(frozen=True)
class Facts:
    """Of a model's files.

    kind          gguf or safetensors
    quantization  the number format of most of its weights
    parameters    values of all tensors
    nbytes        of all files
    modified      seconds since 1970
    digest        what it is known by: 64 hexadecimal digits
    info          metadata by its keys; long arrays are None, but for those who ask for all
    chat          whether there is a chat template; None where the files that say so are damaged
    """

    kind: str
    family: str
    quantization: str
    parameters: int
    nbytes: int
    modified: float
    digest: str
    license: str
    info: Mapping[str, Any]
    chat: bool | None = None

    @property
    def size(self) -> str:
        """Parameters as people say it: 134.52M, 1.2B."""
        for unit, name, places in ((1e9, "B", 1), (1e6, "M", 2), (1e3, "K", 0)):
            if self.parameters >= unit:
                number = self.parameters / unit
                return f"{number:.0f}{name}" if number == int(number) else f"{number:.{places}f}{name}"
        return str(self.parameters)


def facts_of(spec: ModelSpec, *, whole: bool = False) -> Facts | None:
    """The facts of a model; None where it is not fetched yet, or is broken. `whole`: with all of its arrays."""
    try:
        path = resolve(spec.path, fetch=False)
        written = max(each.stat().st_mtime_ns for each in files_of(path))
        return _read_all(path, written, whole=True) if whole else _read(path, written)
    except (ModelError, OSError, ValueError):
        return None


def files_of(path: Path) -> list[Path]:
    """The files of a model that is one file, or a folder."""
    return [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]


@lru_cache(MOST_KEPT)
def _read(path: Path, written: int) -> Facts:
    return _read_all(path, written, whole=False)


def _read_all(path: Path, written: int, *, whole: bool) -> Facts:
    with closing(open_model(path)) as source:
        metadata = source.files.metadata if isinstance(source.files, GgufFile) else {}
        parameters = sum(prod(info.shape) for info in source.files.tensors.values())
        paths = source.files.paths if isinstance(source.files, GgufFile) else files_of(path)
        license_ = metadata.get("general.license", "")
        return Facts(
            kind="gguf" if source.kind == "gguf" else "safetensors",
            family=source.config.architecture,
            quantization=source.config.dtype,
            parameters=parameters,
            nbytes=sum(each.stat().st_size for each in paths),
            modified=written / 1e9,
            digest=identity_of(source),
            license=license_ if isinstance(license_, str) else "",
            info=configured(source, parameters) | told(metadata, whole=whole),
            chat=_chats(source),
        )


def _chats(source: ModelSource) -> bool | None:
    if isinstance(source.files, GgufFile):
        return bool(source.files.metadata.get(TEMPLATES))
    try:
        folder = source.path if source.path.is_dir() else source.path.parent
        return bool(Folder(folder).chat_templates().get("default"))
    except (ModelError, OSError, ValueError):
        return None


def configured(source: ModelSource, parameters: int) -> dict[str, Any]:
    """What is known of every model, by the keys that GGUF files have for it."""
    config = source.config
    prefix = config.architecture
    return {
        "general.architecture": prefix,
        "general.name": config.name,
        "general.parameter_count": parameters,
        f"{prefix}.block_count": config.layers,
        f"{prefix}.context_length": config.context_length,
        f"{prefix}.embedding_length": config.width,
        f"{prefix}.feed_forward_length": config.ffn,
        f"{prefix}.attention.head_count": config.heads,
        f"{prefix}.attention.head_count_kv": config.kv_heads,
        f"{prefix}.vocab_size": config.vocab,
    }


def told(metadata: Mapping[str, Any], *, whole: bool) -> dict[str, Any]:
    """A file's metadata as JSON has it, but for the chat templates."""
    found = {}
    for key, value in metadata.items():
        if key.startswith(TEMPLATES):
            continue
        if isinstance(value, StringArray | np.ndarray | list):
            found[key] = plain(value) if whole or len(value) <= LONGEST_ARRAY else None
        else:
            found[key] = value
    return found


def plain(array: StringArray | np.ndarray | list[Any]) -> list[Any]:
    """An array as a list."""
    if isinstance(array, StringArray):
        return array.decode_all()
    if isinstance(array, np.ndarray):
        return array.tolist()
    return [plain(each) for each in array]
