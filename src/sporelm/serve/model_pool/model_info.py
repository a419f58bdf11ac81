"""ModelInfo: what the headers of a model's files say about it, read without loading the model."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.checkpoints import open_model
from sporelm.checkpoints.identity import compute_identity
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.schema_registry import find_architecture
from sporelm.checkpoints.towers.open_tower import find_tower
from sporelm.errors import ModelError
from sporelm.files.gguf import GgufFile, StringArray
from sporelm.files.store import resolve
from sporelm.models import Encoder
from sporelm.serve.serve_config import ModelSpec
from sporelm.text.tokenizers.hf_folder import TokenizerFolder

MAX_SHORT_ARRAY = 5  # elements of a metadata array that is shown without `verbose`
MAX_CACHED_MODELS = 64
CHAT_TEMPLATE_KEY = "tokenizer.chat_template"


@dataclass(frozen=True)
class ModelInfo:
    """Facts from a model's files.

    kind               gguf or safetensors
    quantization       the number format of most of its weights
    num_parameters     values of all tensors
    nbytes             of all files
    modified           seconds since 1970
    digest             the model's identity: 64 hexadecimal digits
    metadata           by the keys of GGUF; long arrays are None unless all are requested
    has_chat_template  None where the files that say so are damaged
    """

    kind: str
    family: str
    quantization: str
    num_parameters: int
    nbytes: int
    modified: float
    digest: str
    license: str
    metadata: Mapping[str, Any]
    has_chat_template: bool | None = None

    @property
    def is_generative(self) -> bool:
        """Whether the architecture generates text, as all but encoders do."""
        return not issubclass(find_architecture(self.family), Encoder)

    @property
    def parameter_size(self) -> str:
        """The number of parameters for people: 134.52M, 1.2B."""
        for unit, suffix, places in ((1e9, "B", 1), (1e6, "M", 2), (1e3, "K", 0)):
            if self.num_parameters >= unit:
                number = self.num_parameters / unit
                return f"{number:.0f}{suffix}" if number == int(number) else f"{number:.{places}f}{suffix}"
        return str(self.num_parameters)


def read_model_info(spec: ModelSpec, *, all_arrays: bool = False) -> ModelInfo | None:
    """Return the facts of a model; None where it is not downloaded yet, or damaged. `all_arrays`: with long arrays."""
    try:
        path = resolve(spec.path, fetch=False)
        modified_ns = max(each.stat().st_mtime_ns for each in model_files(path))
        read = _read if all_arrays else _read_cached
        return read(path, modified_ns, all_arrays)
    except (ModelError, OSError, ValueError):
        return None


def has_vision_tower(spec: ModelSpec) -> bool | None:
    """Return whether a model sees, by its files; None where they are not downloaded yet, or damaged."""
    if spec.mmproj is not None:
        return True
    try:
        path = resolve(spec.path, fetch=False)
        return path.is_dir() and find_tower(path) is not None
    except (ModelError, OSError, ValueError):
        return None


def model_files(path: Path) -> list[Path]:
    """Return the files of a model that is a file or a folder."""
    return [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]


def _read(path: Path, modified_ns: int, all_arrays: bool) -> ModelInfo:
    with closing(open_model(path)) as source:
        metadata = source.files.metadata if isinstance(source.files, GgufFile) else {}
        num_parameters = sum(prod(info.shape) for info in source.files.tensors.values())
        paths = source.files.paths if isinstance(source.files, GgufFile) else model_files(path)
        license_ = metadata.get("general.license", "")
        return ModelInfo(
            kind="gguf" if source.kind == "gguf" else "safetensors",
            family=source.config.architecture,
            quantization=source.config.dtype,
            num_parameters=num_parameters,
            nbytes=sum(each.stat().st_size for each in paths),
            modified=modified_ns / 1e9,
            digest=compute_identity(source).sha256,
            license=license_ if isinstance(license_, str) else "",
            metadata=config_metadata(source, num_parameters) | json_metadata(metadata, all_arrays=all_arrays),
            has_chat_template=_has_chat_template(source),
        )


_read_cached = lru_cache(MAX_CACHED_MODELS)(_read)


def _has_chat_template(source: ModelSource) -> bool | None:
    if isinstance(source.files, GgufFile):
        return bool(source.files.metadata.get(CHAT_TEMPLATE_KEY))
    try:
        folder = source.path if source.path.is_dir() else source.path.parent
        return bool(TokenizerFolder(folder).read_chat_templates().get("default"))
    except (ModelError, OSError, ValueError):
        return None


def config_metadata(source: ModelSource, num_parameters: int) -> dict[str, Any]:
    """Return what the configuration of every model has, under the keys of GGUF."""
    config = source.config
    prefix = config.architecture
    return {
        "general.architecture": prefix,
        "general.name": config.name,
        "general.parameter_count": num_parameters,
        f"{prefix}.block_count": config.layers,
        f"{prefix}.context_length": config.context_length,
        f"{prefix}.embedding_length": config.width,
        f"{prefix}.feed_forward_length": config.ffn,
        f"{prefix}.attention.head_count": config.heads,
        f"{prefix}.attention.head_count_kv": config.kv_heads,
        f"{prefix}.vocab_size": config.vocab,
    }


def json_metadata(metadata: Mapping[str, Any], *, all_arrays: bool) -> dict[str, Any]:
    """Return a file's metadata as JSON values, without the chat templates."""
    values = {}
    for key, value in metadata.items():
        if key.startswith(CHAT_TEMPLATE_KEY):
            continue
        if isinstance(value, StringArray | np.ndarray | list):
            values[key] = array_to_list(value) if all_arrays or len(value) <= MAX_SHORT_ARRAY else None
        else:
            values[key] = value
    return values


def array_to_list(array: StringArray | np.ndarray | list[Any]) -> list[Any]:
    """Return an array of metadata as a list."""
    if isinstance(array, StringArray):
        return array.decode_all()
    if isinstance(array, np.ndarray):
        return array.tolist()
    return [array_to_list(each) for each in array]
