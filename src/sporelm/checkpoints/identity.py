"""The identity of a model: a hash of its files, which sessions and recordings store to name their model.

Keys and values of one model are useless to another. The hash depends on the files alone, so it stays the same when our
classes change (ADR 0039).
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from sporelm.checkpoints.legacy_identity import legacy_config_text
from sporelm.checkpoints.loader import ModelSource
from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.files.gguf import GgufFile
from sporelm.files.json_object import read_object

SAMPLE_BYTES = 256  # from the beginning of each tensor, and from its end


class ModelIdentity(NamedTuple):
    """The hash that new files store, and the hash that files of version 0.1.0 stored."""

    sha256: str
    legacy_sha256: str

    def matches(self, recorded: object) -> bool:
        """Return whether a recorded hash belongs to the model."""
        return recorded in self


def compute_identity(source: ModelSource) -> ModelIdentity:
    """Hash the configuration in the files, the names, types and shapes of all tensors, and a few bytes of each."""
    current = sha256(json.dumps(_hyperparameters(source), sort_keys=True, default=_to_list).encode())
    legacy = sha256(legacy_config_text(source.config).encode())
    files = source.files.files if isinstance(source.files, QuantizedFolder) else source.files
    for name in sorted(files.tensors):
        info = files.tensors[name]
        data = files.raw(name).data
        for digest in (current, legacy):
            digest.update(f"{name} {info.type_name} {info.shape}\n".encode())
            digest.update(data[:SAMPLE_BYTES])
            digest.update(data[-SAMPLE_BYTES:])
    return ModelIdentity(current.hexdigest(), legacy.hexdigest())


def _hyperparameters(source: ModelSource) -> Mapping[str, Any]:
    """Return config.json, or the metadata of a GGUF file's architecture.

    Other metadata (names, tokenizer, chat template, split) does not affect keys and values.
    """
    if not isinstance(source.files, GgufFile):
        return read_object(source.path / "config.json")
    metadata = source.files.metadata
    architecture = str(metadata.get("general.architecture"))
    found = {key: value for key, value in metadata.items() if key.startswith(f"{architecture}.")}
    return {"general.architecture": architecture, **found}


def _to_list(value: Any) -> Any:
    """Return an array of the metadata as a list, a numpy scalar as a number."""
    return value.tolist()
