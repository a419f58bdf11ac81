"""llama.cpp's own tokenizer, through its shared library: for comparisons of ids and of speed, never for the program.

The layout of `llama_model_params` is that of the version that `bench/peer.sh` builds.
"""

import ctypes
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = {"darwin": "libllama.dylib", "win32": "llama.dll"}


class _ModelParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("devices", "buffer_overrides")),
        *((name, ctypes.c_int32) for name in ("gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, ctypes.c_void_p) for name in ("tensor_split", "progress", "progress_data", "kv_overrides")),
        *((name, ctypes.c_bool) for name in ("vocab_only", "check_tensors", "extra_buffers", "no_host", "no_alloc")),
        ("load_mtp", ctypes.c_bool),
    ]


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _LOG(lambda level, text, data: None)


def load_library(place: Path) -> Any:
    """libllama itself, or the one in the folder `place`."""
    library = ctypes.CDLL(str(place / NAMES.get(sys.platform, "libllama.so") if place.is_dir() else place))
    library.llama_model_default_params.restype = _ModelParams
    library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _ModelParams]
    library.llama_model_load_from_file.restype = ctypes.c_void_p
    library.llama_model_free.argtypes = [ctypes.c_void_p]
    library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    library.llama_model_get_vocab.restype = ctypes.c_void_p
    pointer = ctypes.c_void_p
    tokenize = [pointer, ctypes.c_char_p, ctypes.c_int32, pointer, ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    library.llama_tokenize.argtypes = tokenize
    library.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    library.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    library.llama_vocab_is_eog.restype = ctypes.c_bool
    library.llama_token_to_piece.argtypes = [pointer, *[ctypes.c_int32], pointer, *[ctypes.c_int32] * 2, ctypes.c_bool]
    library.llama_log_set(_silent, None)
    library.llama_backend_init()
    return library


class PeerVocab:
    """One vocabulary as llama.cpp reads it. Raises ValueError where it cannot."""

    def __init__(self, library: Any, path: Path) -> None:
        self._library = library
        params = library.llama_model_default_params()
        params.vocab_only = True
        self._model = library.llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp cannot read {path}")
        self._vocab = library.llama_model_get_vocab(self._model)
        self._room = (ctypes.c_int32 * 1024)()

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        count = self.tokenize(text.encode(), add_special=add_special, parse_special=parse_special)
        return list(self._room[:count])

    def tokenize(self, data: bytes, *, add_special: bool = False, parse_special: bool = False) -> int:
        """How many tokens `data` has; they stay in this object's buffer."""
        if len(self._room) < len(data) + 16:
            self._room = (ctypes.c_int32 * (len(data) + 16))()
        call = self._library.llama_tokenize
        return int(call(self._vocab, data, len(data), self._room, len(self._room), add_special, parse_special))

    def ends(self) -> list[int]:
        """The tokens that end a generation."""
        count = self._library.llama_vocab_n_tokens(self._vocab)
        return [token for token in range(count) if self._library.llama_vocab_is_eog(self._vocab, token)]

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """The bytes of one token."""
        room = ctypes.create_string_buffer(4096)
        count = self._library.llama_token_to_piece(self._vocab, token, room, len(room), 0, special)
        return room.raw[: max(count, 0)]

    def close(self) -> None:
        self._library.llama_model_free(self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
