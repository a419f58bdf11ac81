"""Sequences on disk: their tokens, keys and values, so that nothing is computed again when they are woken.

A file is in the safetensors format (docs/sessions.md). Metadata: `format` "sporelm.session", `version` "1", or "2"
where there are recurrent states, `model` what the model is known by, `adapter` what the adapter is known by if there
was one, `notes` a JSON object of whoever wrote it, `sha256` of these and of the tensors.
Tensors: `tokens` int64 [n], and `layers.N` [pages, 2, kv_heads, PAGE, head_dim], keys and then values of each layer in
the canonical form of back-ends (of q8_0 blocks instead of numbers); positions past the last token are zero. Of models
that keep recurrent states `states.N` float32 [1, ...] too, each array of each layer after the last token; [0, ...]
where there is no token.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.kv.pages import pages_for
from sporelm.errors import ModelError, ModelFileError, RequestError
from sporelm.ops.attention import PAGE
from sporelm.weights.gguf.beside import Job, write_beside
from sporelm.weights.safetensors import SafetensorsFiles, open_safetensors

FORMAT, VERSION, WITH_STATES = "sporelm.session", "1", "2"
ALIGNMENT = 64  # of the data
MOST_NOTES = 1 << 23  # bytes
MOST_HEADER = 2 * MOST_NOTES + (1 << 20)  # the notes are a JSON text inside a JSON text; and the tensors
TYPES = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "U8": np.dtype("u1")}
KV_NAMES = {"F16": "f16", "F32": "f32", "U8": "q8_0"}  # as --kv calls them
Layers = Sequence[NDArray[np.generic]]


class Asleep(NamedTuple):
    """What a sequence held: its tokens, the pages of each layer, and notes; which adapter computed it, and the arrays
    of its state."""

    tokens: list[int]
    layers: Layers
    notes: dict[str, Any]
    adapter: str = ""
    states: Layers = ()


class Like(NamedTuple):
    """Arrays of no pages and of no states, of the shapes and types that a model's layers have."""

    layers: Layers
    states: Layers = ()


class Written(NamedTuple):
    """A file's bytes, and the hash of what is in it."""

    nbytes: int
    sha256: str


def write_asleep(path: Path, asleep: Asleep, model: str) -> Written:
    """Write a file that only its owner can read, whole or not at all. Raises RequestError if it cannot be written."""
    arrays = {"tokens": np.asarray(asleep.tokens, "<i8")}
    for number, layer in enumerate(asleep.layers):
        arrays[f"layers.{number}"] = _blanked(layer, len(asleep.tokens))
    for number, state in enumerate(asleep.states):
        arrays[f"states.{number}"] = np.ascontiguousarray(state, "<f4")
    names = {dtype: name for name, dtype in TYPES.items()} | {np.dtype("<i8"): "I64"}
    notes = json.dumps(asleep.notes, ensure_ascii=False)
    try:
        size = len(notes.encode())
    except UnicodeEncodeError:
        raise RequestError("the notes of a session hold half of a surrogate pair: it is not valid Unicode") from None
    if size > MOST_NOTES:
        raise RequestError(f"the notes of a session have {size} bytes: at most {MOST_NOTES} are kept")
    digest, offset, entries = _digest(model, notes, asleep.adapter), 0, dict[str, Any]()
    for name, array in arrays.items():
        digest.update(_bytes(array))
        place = [offset, offset + array.nbytes]
        entries[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": place}
        offset += array.nbytes
    version = WITH_STATES if asleep.states else VERSION
    known = {"format": FORMAT, "version": version, "model": model, "sha256": digest.hexdigest(), "notes": notes}
    if asleep.adapter:
        known["adapter"] = asleep.adapter
    header = json.dumps({"__metadata__": known, **entries}, ensure_ascii=False).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(_bytes(array))

    write_beside([Job(path, write, private=True)])
    return Written(8 + len(header) + offset, digest.hexdigest())


def read_asleep(
    path: Path, model: str, like: Like, most_tokens: int, vocab: int, expected: str | None = None
) -> Asleep:
    """What a file holds, its values seen where they lie. `like` is what the model's layers are like; `expected` is the
    hash that the file must have, where that is known.

    Raises ModelNotFound, ModelFileError for a file that is damaged or was tampered with, RequestError for one of
    another model, of another kind of numbers, or of more tokens than the context holds.
    """
    with _open(path) as files:
        known, version = files.metadata, WITH_STATES if like.states else VERSION
        if (known.get("format"), known.get("version")) != (FORMAT, version):
            raise ModelFileError(
                f"{path} is no session of version {version}: its format is {known.get('format')!r:.40}, its version "
                f"{known.get('version')!r:.20}"
            )
        if known.get("model") != model:
            raise RequestError(f"{path} is a session of another model: open it with the model that it was made with")
        # What the sizes are is checked first, so that no more is read than the context justifies.
        length = _length(path, files, most_tokens)
        for number, each in enumerate(like.layers):
            _check_layer(path, files, number, each, length)
        for number, each in enumerate(like.states):
            _check_state(path, files, number, (min(length, 1), *each.shape[1:]))
        expected_tensors = 1 + len(like.layers) + len(like.states)
        if len(files.tensors) != expected_tensors:
            raise ModelFileError(f"{path} holds {len(files.tensors)} tensors, not {expected_tensors}: it is damaged")
        end, size = max(info.offset + info.nbytes for info in files.tensors.values()), path.stat().st_size
        if end != size:
            raise ModelFileError(f"{path} has {size} bytes, what is in it ends at {end}: it is damaged")
        notes, adapter = known.get("notes", ""), known.get("adapter", "")
        _check_hash(path, files, _digest(model, notes, adapter), expected or known.get("sha256"))
        tokens = files.raw("tokens").view("<i8")
        if length and not 0 <= tokens.min() <= tokens.max() < vocab:
            raise ModelFileError(f"{path} holds tokens that the model does not know: it is damaged")
        layers = [
            files.raw(f"layers.{number}").view(each.dtype).reshape(pages_for(length), *each.shape[1:])
            for number, each in enumerate(like.layers)
        ]
        states = [
            files.raw(f"states.{number}").view("<f4").reshape(min(length, 1), *each.shape[1:])
            for number, each in enumerate(like.states)
        ]
        return Asleep(tokens.tolist(), layers, _notes(path, notes), adapter, states)


def is_asleep(path: Path) -> bool:
    """Whether a file calls itself a session."""
    try:
        with _open(path) as files:
            return files.metadata.get("format") == FORMAT
    except ModelError:
        return False


def check_replaceable(path: Path) -> None:
    """Raise RequestError if something is there that is neither a session nor an empty file: it is never replaced."""
    if path.exists() and not (path.is_file() and (path.stat().st_size == 0 or is_asleep(path))):
        raise RequestError(f"{path} is there and is no session: it is not overwritten; give another name")


def _open(path: Path) -> SafetensorsFiles:
    """The file, if its header is no larger than one that we write. Raises ModelNotFound, ModelFileError."""
    if path.is_dir():
        raise ModelFileError(f"{path} is a folder: a session is one file")
    if path.is_file():
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
        except OSError as reason:
            raise ModelFileError(f"{path} cannot be read: {reason}") from None
        if length > MOST_HEADER:
            raise ModelFileError(f"{path}: a header of {length} bytes is claimed, at most {MOST_HEADER} are read")
    return open_safetensors(path)


def _blanked(layer: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    """The layer's pages, with nothing past the last token: there may lie what others have left."""
    whole = np.ascontiguousarray(layer)
    if length % PAGE:
        whole = whole.copy() if whole is layer else whole
        whole[-1, :, :, length % PAGE :] = 0
    return whole


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _digest(model: str, notes: str, adapter: str) -> Any:
    """A hash that has begun with what the header says."""
    said = (model, notes, adapter) if adapter else (model, notes)
    texts = [text.encode("utf-8", "surrogatepass") for text in said]
    return sha256(b"".join(len(text).to_bytes(8, "little") + text for text in texts))


def _check_hash(path: Path, files: SafetensorsFiles, digest: Any, expected: str | None) -> None:
    """Raise ModelFileError unless the tensors, after what the hash has begun with, have the expected one."""
    for name in files.names:
        digest.update(files.raw(name).data)
    if digest.hexdigest() != expected:
        raise ModelFileError(f"{path} does not hold what was written: its hash differs; it is damaged")


def _length(path: Path, files: SafetensorsFiles, most: int) -> int:
    """How many tokens a file says that it holds."""
    info = files.tensors.get("tokens")
    if info is None or info.type_name != "I64" or len(info.shape) != 1:
        raise ModelFileError(f"{path} holds no list of tokens: it is damaged")
    if info.shape[0] > most:
        raise RequestError(f"{path} holds {info.shape[0]} tokens, the context {most}: raise --max-context")
    return info.shape[0]


def _check_layer(path: Path, files: SafetensorsFiles, number: int, like: NDArray[np.generic], length: int) -> None:
    info = files.tensors.get(f"layers.{number}")
    shape = (pages_for(length), *like.shape[1:])
    if info is None or info.type_name not in TYPES:
        raise ModelFileError(f"{path} holds no keys and values of layer {number}: it is damaged")
    if TYPES[info.type_name] != like.dtype:
        kind = KV_NAMES[info.type_name]
        raise RequestError(f"{path} holds keys and values in {kind}: open the model with --kv {kind}")
    if info.shape != shape:
        raise ModelFileError(f"{path}: layers.{number} is not {list(shape)}: it is damaged")


def _check_state(path: Path, files: SafetensorsFiles, number: int, shape: tuple[int, ...]) -> None:
    info = files.tensors.get(f"states.{number}")
    if info is None or info.type_name != "F32" or info.shape != shape:
        raise ModelFileError(f"{path}: states.{number} is not float32 {list(shape)}: it is damaged")


def _notes(path: Path, text: str) -> dict[str, Any]:
    if len(text) > MOST_NOTES:
        raise ModelFileError(f"{path}: its notes have {len(text)} characters, at most {MOST_NOTES} bytes are written")
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise ModelFileError(f"{path}: the notes are no JSON object: it is damaged")
    return notes
