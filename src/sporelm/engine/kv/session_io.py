"""Session files: what a sequence holds, on disk, so that nothing is recomputed when it is loaded.

A file is in the safetensors format (docs/sessions.md). Metadata: `format` "sporelm.session", `version` "1", "2" with
recurrent states, or "3" with attachments or ids of image rows, `model` the model's identity, `adapter` that of the LoRA
adapter if there was one, `notes` a JSON object of the caller, `sha256` of these and of the tensors. Tensors: `tokens`
int64 [n], and `layers.N` [pages, 2, kv_heads, PAGE, head_dim], the keys and then the values of each layer in the
canonical form of back-ends (q8_0 blocks instead of numbers); positions past the last token are zero. With recurrent
states also `states.N` float32 [1, ...], each array of each layer after the last token; [0, ...] without tokens.
`attachments.N` uint8 [n] are further bytes of the caller, such as pictures. These keys and names are written and read
here alone.
"""

import json
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.prompt_images import IMAGE_IDS
from sporelm.errors import ModelError, ModelFileError, RequestError
from sporelm.files.atomic_write import Job, write_beside
from sporelm.files.safetensors import SafetensorsFiles, open_safetensors
from sporelm.ops.paged_attention import PAGE

FORMAT = "sporelm.session"
VERSION = "1"
VERSION_WITH_STATES = "2"
VERSION_WITH_IMAGES = "3"  # attachments, or ids of image rows among the tokens; with or without states
ATTACHMENTS = "attachments."
ALIGNMENT = 64  # of the data
MAX_NOTES_BYTES = 1 << 23
MAX_ATTACHMENT_BYTES = 1 << 28  # of all attachments together
MAX_HEADER_BYTES = 2 * MAX_NOTES_BYTES + (1 << 20)  # the notes are a JSON text inside a JSON text; and the tensors
DTYPES = {
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F32": np.dtype("<f4"),
    "F8_E4M3": np.dtype("u1"),
    "U8": np.dtype("u1"),
}
KV_OPTIONS = {"F16": "f16", "BF16": "bf16", "F32": "f32", "F8_E4M3": "fp8", "U8": "q8_0"}  # the values of --kv
TYPE_NAMES = {option: name for name, option in KV_OPTIONS.items()}
Layers = Sequence[NDArray[np.generic]]


class SessionData(NamedTuple):
    """The content of a sequence: its tokens, the pages of each layer, the caller's notes, the identity of the adapter
    that computed it, the arrays of its recurrent state, the data type of the pages (a value of --kv), and further bytes
    of the caller, which `read_attachments` reads."""

    tokens: list[int]
    layers: Layers
    notes: dict[str, Any]
    adapter: str = ""
    states: Layers = ()
    kv: str = "f16"
    attachments: Sequence[bytes] = ()


class CacheLayout(NamedTuple):
    """Arrays of no pages and of no states, with the shapes and types of a model's cache; `kv` is a value of --kv."""

    layers: Layers
    states: Layers = ()
    kv: str = "f16"


class SessionFileInfo(NamedTuple):
    """The size of a file that was written, and the hash of its content."""

    nbytes: int
    sha256: str


def write_session(path: Path, session: SessionData, model: str) -> SessionFileInfo:
    """Write a file that only its owner can read, completely or not at all. `model` is the model's identity.

    Raises RequestError if it cannot be written.
    """
    arrays = {"tokens": np.asarray(session.tokens, "<i8")}
    types = {"tokens": "I64"}
    for number, layer in enumerate(session.layers):
        arrays[f"layers.{number}"] = _zero_tail(layer, len(session.tokens))
        types[f"layers.{number}"] = TYPE_NAMES[session.kv]
    for number, state in enumerate(session.states):
        arrays[f"states.{number}"] = np.ascontiguousarray(state, "<f4")
        types[f"states.{number}"] = "F32"
    attachment_bytes = sum(map(len, session.attachments))
    if attachment_bytes > MAX_ATTACHMENT_BYTES:
        raise RequestError(
            f"session pictures: too large (got {attachment_bytes} bytes; allowed {MAX_ATTACHMENT_BYTES}). Save a "
            "conversation with fewer or smaller pictures."
        )
    for number, data in enumerate(session.attachments):
        arrays[f"{ATTACHMENTS}{number}"] = np.frombuffer(data, np.uint8)
        types[f"{ATTACHMENTS}{number}"] = "U8"
    notes = json.dumps(session.notes, ensure_ascii=False)
    try:
        notes_bytes = len(notes.encode())
    except UnicodeEncodeError:
        raise RequestError("session notes: not valid Unicode (got half of a surrogate pair)") from None
    if notes_bytes > MAX_NOTES_BYTES:
        raise RequestError(f"session notes: too large (got {notes_bytes} bytes; allowed {MAX_NOTES_BYTES})")
    digest = _begin_digest(model, notes, session.adapter)
    entries = dict[str, Any]()
    offset = 0
    for name, array in arrays.items():
        digest.update(_bytes_of(array))
        offsets = [offset, offset + array.nbytes]
        entries[name] = {"dtype": types[name], "shape": list(array.shape), "data_offsets": offsets}
        offset += array.nbytes
    version = VERSION_WITH_STATES if session.states else VERSION
    if session.attachments or (arrays["tokens"] >= IMAGE_IDS).any():
        version = VERSION_WITH_IMAGES
    metadata = {"format": FORMAT, "version": version, "model": model, "sha256": digest.hexdigest(), "notes": notes}
    if session.adapter:
        metadata["adapter"] = session.adapter
    header = json.dumps({"__metadata__": metadata, **entries}, ensure_ascii=False).encode()
    header += b" " * (-(len(header) + 8) % ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in arrays.values():
            file.write(_bytes_of(array))

    write_beside([Job(path, write, private=True)])
    return SessionFileInfo(8 + len(header) + offset, digest.hexdigest())


def read_session(
    path: Path,
    models: Collection[str],
    layout: CacheLayout,
    max_tokens: int,
    vocab: int,
    expected_sha256: str | None = None,
) -> SessionData:
    """Read a session file; the arrays are views of the mapped file.

    `models` are the identities under which files know the model, `layout` is that of its cache; `expected_sha256` is
    given where the file's hash is known already. Raises ModelNotFound; ModelFileError for a file that is damaged or was
    tampered with; RequestError for one of another model, of another number type, or of more tokens than the context
    holds.
    """
    with _open(path) as files:
        metadata = files.metadata
        # Version 3 came after the pictures: earlier files with pictures have version 1 or 2.
        versions = (VERSION_WITH_STATES if layout.states else VERSION, VERSION_WITH_IMAGES)
        if metadata.get("format") != FORMAT or metadata.get("version") not in versions:
            raise ModelFileError(
                f"{path}: not a session file of version {' or '.join(versions)} (got format "
                f"{metadata.get('format')!r:.40}, version {metadata.get('version')!r:.20})"
            )
        model = metadata.get("model", "")
        if model not in models:
            raise RequestError(f"{path}: session of another model. Open it with the model that made it.")
        # The sizes are checked first, so that no more is read than the context justifies.
        length = _read_length(path, files, max_tokens)
        for number, each in enumerate(layout.layers):
            _check_layer(path, files, number, each, length, layout.kv)
        for number, each in enumerate(layout.states):
            _check_state(path, files, number, (min(length, 1), *each.shape[1:]))
        num_tensors = 1 + len(layout.layers) + len(layout.states) + len(_attachment_names(path, files))
        if len(files.tensors) != num_tensors:
            raise _damaged(path, f"got {len(files.tensors)} tensors; expected {num_tensors}")
        end = max(info.offset + info.nbytes for info in files.tensors.values())
        size = path.stat().st_size
        if end != size:
            raise _damaged(path, f"got {size} bytes; its tensors end at {end}")
        notes = metadata.get("notes", "")
        adapter = metadata.get("adapter", "")
        _check_hash(path, files, _begin_digest(model, notes, adapter), expected_sha256 or metadata.get("sha256"))
        tokens = files.raw("tokens").view("<i8")
        if length and not ((tokens >= 0) & ((tokens < vocab) | (tokens >= IMAGE_IDS))).all():
            raise _damaged(path, "it has tokens outside the model's vocabulary")
        layers = [
            files.raw(f"layers.{number}").view(each.dtype).reshape(count_pages(length), *each.shape[1:])
            for number, each in enumerate(layout.layers)
        ]
        states = [
            files.raw(f"states.{number}").view("<f4").reshape(min(length, 1), *each.shape[1:])
            for number, each in enumerate(layout.states)
        ]
        return SessionData(tokens.tolist(), layers, _parse_notes(path, notes), adapter, states, layout.kv)


def read_attachments(path: Path) -> list[bytes]:
    """Return the attachments of a session file that `read_session` has accepted. Raises ModelNotFound, ModelFileError.

    The file may have changed since: callers compare hashes.
    """
    with _open(path) as files:
        return [files.raw(name).tobytes() for name in _attachment_names(path, files)]


def _attachment_names(path: Path, files: SafetensorsFiles) -> list[str]:
    """Return the names of the attachments in a file, in order. Raises ModelFileError for more than files may have."""
    names = [name for name in files.names if name.startswith(ATTACHMENTS)]
    infos = [files.tensors[name] for name in names]
    is_valid = all(info.type_name == "U8" and len(info.shape) == 1 for info in infos)
    if not is_valid or sum(info.nbytes for info in infos) > MAX_ATTACHMENT_BYTES:
        raise _damaged(path, "its attachments are not bytes, or too many")
    return names


def is_session_file(path: Path) -> bool:
    """Return whether a file says that it is a session."""
    try:
        with _open(path) as files:
            return files.metadata.get("format") == FORMAT
    except ModelError:
        return False


def check_replaceable(path: Path) -> None:
    """Raise RequestError if something other than a session or an empty file is at this path: it is never replaced."""
    if path.exists() and not (path.is_file() and (path.stat().st_size == 0 or is_session_file(path))):
        raise RequestError(f"{path}: exists and is not a session file, so it is not overwritten. Give another name.")


def _damaged(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(f"{path}: damaged session file ({reason})")


def _open(path: Path) -> SafetensorsFiles:
    """Open a file whose header is no larger than ours can be. Raises ModelNotFound, ModelFileError."""
    if path.is_dir():
        raise ModelFileError(f"{path}: is a folder, but a session is one file")
    if path.is_file():
        try:
            with path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
        except OSError as error:
            raise ModelFileError(f"{path}: cannot be read ({error})") from None
        if header_bytes > MAX_HEADER_BYTES:
            raise ModelFileError(f"{path}: header too large (got {header_bytes} bytes; allowed {MAX_HEADER_BYTES})")
    return open_safetensors(path)


def _zero_tail(layer: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    """Return the layer's pages with zeros past the last token, where values of other sequences may be."""
    pages = np.ascontiguousarray(layer)
    if length % PAGE:
        pages = pages.copy() if pages is layer else pages
        pages[-1, :, :, length % PAGE :] = 0
    return pages


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _begin_digest(model: str, notes: str, adapter: str) -> Any:
    """Return a hash of the metadata, to which the tensors are added."""
    metadata = (model, notes, adapter) if adapter else (model, notes)
    texts = [text.encode("utf-8", "surrogatepass") for text in metadata]
    return sha256(b"".join(len(text).to_bytes(8, "little") + text for text in texts))


def _check_hash(path: Path, files: SafetensorsFiles, digest: Any, expected: str | None) -> None:
    """Add the tensors to a hash. Raises ModelFileError unless it is the expected one."""
    for name in files.names:
        digest.update(files.raw(name).data)
    if digest.hexdigest() != expected:
        raise _damaged(path, "its hash differs from the one that was written")


def _read_length(path: Path, files: SafetensorsFiles, max_tokens: int) -> int:
    """Return how many tokens a file says it holds."""
    info = files.tensors.get("tokens")
    if info is None or info.type_name != "I64" or len(info.shape) != 1:
        raise _damaged(path, "its list of tokens is missing")
    if info.shape[0] > max_tokens:
        limit = f"got {info.shape[0]} tokens; the context holds {max_tokens}"
        raise RequestError(f"{path}: session too long ({limit}). Raise the option max_context.")
    return info.shape[0]


def _check_layer(
    path: Path, files: SafetensorsFiles, number: int, layout: NDArray[np.generic], length: int, kv: str
) -> None:
    info = files.tensors.get(f"layers.{number}")
    shape = (count_pages(length), *layout.shape[1:])
    if info is None or info.type_name not in DTYPES:
        raise _damaged(path, f"keys and values of layer {number} are missing")
    option = KV_OPTIONS[info.type_name]
    if option != kv:
        raise RequestError(
            f"{path}: keys and values are in {option}. Open the model with the option kv set to {option}."
        )
    if info.shape != shape:
        raise _damaged(path, f"layers.{number} is not {list(shape)}")


def _check_state(path: Path, files: SafetensorsFiles, number: int, shape: tuple[int, ...]) -> None:
    info = files.tensors.get(f"states.{number}")
    if info is None or info.type_name != "F32" or info.shape != shape:
        raise _damaged(path, f"states.{number} is not float32 {list(shape)}")


def _parse_notes(path: Path, text: str) -> dict[str, Any]:
    if len(text) > MAX_NOTES_BYTES:
        raise _damaged(path, f"its notes have {len(text)} characters; allowed {MAX_NOTES_BYTES} bytes")
    try:
        notes = json.loads(text)
    except (ValueError, RecursionError):
        notes = None
    if not isinstance(notes, dict):
        raise _damaged(path, "its notes are not a JSON object")
    return notes
