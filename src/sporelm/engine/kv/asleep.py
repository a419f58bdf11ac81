"""Sequences on disk: their tokens, keys and values, so that nothing is computed again when they are woken.

A file is in the safetensors format (docs/sessions.md). Metadata: `format` "sporelm.session", `version` "1", `model`
what the model is known by, `sha256` of all that follows the header, `notes` a JSON object of whoever wrote it.
Tensors: `tokens` int64 [n], and `layers.N` [pages, 2, kv_heads, PAGE, head_dim], keys and then values of each layer in
the canonical form of back-ends; positions past the last token are zero.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.kv.pages import pages_for
from sporelm.errors import ModelFileError, RequestError
from sporelm.ops.attention import PAGE
from sporelm.weights.gguf.beside import Job, write_beside
from sporelm.weights.safetensors import SafetensorsFiles, open_safetensors

FORMAT, VERSION = "sporelm.session", "1"
ALIGNMENT = 64  # of the data
MOST_NOTES = 1 << 23  # bytes
TYPES = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4")}
Layers = Sequence[NDArray[np.generic]]


class Asleep(NamedTuple):
    """What a sequence held: its tokens, the pages of each layer, and notes."""

    tokens: list[int]
    layers: Layers
    notes: dict[str, Any]


def write_asleep(path: Path, asleep: Asleep, model: str) -> int:
    """Write a file, whole or not at all; its bytes. Raises RequestError if it cannot be written."""
    arrays = {"tokens": np.asarray(asleep.tokens, "<i8")}
    for number, layer in enumerate(asleep.layers):
        arrays[f"layers.{number}"] = _blanked(layer, len(asleep.tokens))
    names = {dtype: name for name, dtype in TYPES.items()} | {np.dtype("<i8"): "I64"}
    digest, offset, entries = sha256(), 0, dict[str, Any]()
    for name, array in arrays.items():
        digest.update(_bytes(array))
        place = [offset, offset + array.nbytes]
        entries[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": place}
        offset += array.nbytes
    notes = json.dumps(asleep.notes, ensure_ascii=False)
    if len(notes.encode()) > MOST_NOTES:
        raise RequestError(f"the notes of a session have {len(notes.encode())} bytes: at most {MOST_NOTES} are kept")
    known = {"format": FORMAT, "version": VERSION, "model": model, "sha256": digest.hexdigest(), "notes": notes}
    header = json.dumps({"__metadata__": known, **entries}, ensure_ascii=False).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(_bytes(array))

    write_beside([Job(path, write)])
    return 8 + len(header) + offset


def read_asleep(path: Path, model: str, like: Layers, most_tokens: int, vocab: int) -> Asleep:
    """What a file holds, its values seen where they lie. `like` are arrays of no pages, of the shapes and types that
    the model's layers have.

    Raises ModelNotFound, ModelFileError for a file that is damaged or was tampered with, RequestError for one of
    another model, of another kind of numbers, or of more tokens than the context holds.
    """
    with open_safetensors(path) as files:
        known = files.metadata
        if (known.get("format"), known.get("version")) != (FORMAT, VERSION):
            raise ModelFileError(
                f"{path} is no session of version {VERSION}: its format is {known.get('format')!r:.40}"
            )
        if known.get("model") != model:
            raise RequestError(f"{path} is a session of another model: open it with the model that it was made with")
        _check_hash(path, files)
        tokens = _tokens(path, files, most_tokens, vocab)
        layers = [_layer(path, files, number, each, len(tokens)) for number, each in enumerate(like)]
        if len(files.tensors) != len(layers) + 1:
            raise ModelFileError(f"{path} holds {len(files.tensors)} tensors, not {len(layers) + 1}: it is damaged")
        return Asleep(tokens, layers, _notes(path, known.get("notes", "")))


def _blanked(layer: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    """The layer's pages, with nothing past the last token: there may lie what others have left."""
    whole = np.ascontiguousarray(layer)
    if length % PAGE:
        whole = whole.copy() if whole is layer else whole
        whole[-1, :, :, length % PAGE :] = 0
    return whole


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _check_hash(path: Path, files: SafetensorsFiles) -> None:
    digest = sha256()
    for name in files.names:
        digest.update(files.raw(name).data)
    if digest.hexdigest() != files.metadata.get("sha256"):
        raise ModelFileError(f"{path} does not hold what was written: its hash differs; it is damaged")


def _tokens(path: Path, files: SafetensorsFiles, most: int, vocab: int) -> list[int]:
    info = files.tensors.get("tokens")
    if info is None or info.type_name != "I64" or len(info.shape) != 1:
        raise ModelFileError(f"{path} holds no list of tokens: it is damaged")
    if info.shape[0] > most:
        raise RequestError(f"{path} holds {info.shape[0]} tokens, the context {most}: raise --max-context")
    tokens = files.raw("tokens").view("<i8")
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab:
        raise ModelFileError(f"{path} holds tokens that the model does not know: it is damaged")
    return [int(token) for token in tokens]


def _layer(
    path: Path, files: SafetensorsFiles, number: int, like: NDArray[np.generic], length: int
) -> NDArray[np.generic]:
    info = files.tensors.get(f"layers.{number}")
    shape = (pages_for(length), *like.shape[1:])
    if info is None or info.shape != shape:
        raise ModelFileError(f"{path}: layers.{number} is not {list(shape)}: it is damaged")
    if TYPES.get(info.type_name) != like.dtype:
        raise RequestError(f"{path} holds keys and values in {info.type_name}: open the model with --kv likewise")
    return files.raw(f"layers.{number}").view(like.dtype).reshape(shape)


def _notes(path: Path, text: str) -> dict[str, Any]:
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise ModelFileError(f"{path}: the notes are no JSON object: it is damaged")
    return notes
