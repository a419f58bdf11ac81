"""llama.cpp's logits through its shared library, for models that both read.

The layouts of its structures are those of the version that `bench/peer.sh` builds.
"""

import ctypes
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class _ContextParams(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, ctypes.c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, ctypes.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, ctypes.c_int32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, ctypes.c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext", "yarn_attn")),
        *((name, ctypes.c_float) for name in ("yarn_fast", "yarn_slow")),
        ("yarn_orig_ctx", ctypes.c_uint32),
        ("defrag", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("cb_eval", "cb_eval_data")),
        *((name, ctypes.c_int32) for name in ("type_k", "type_v")),
        *((name, ctypes.c_void_p) for name in ("abort", "abort_data")),
        *((name, ctypes.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full")),
        ("kv_unified", ctypes.c_bool),
        ("samplers", ctypes.c_void_p),
        ("n_samplers", ctypes.c_size_t),
        ("other", ctypes.c_void_p),
    ]


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def load_peer_vocab(root: Path) -> Any:
    """The module bench/peer_vocab.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("peer_vocab", root / "bench" / "peer_vocab.py")
    assert spec
    assert spec.loader
    peer_vocab = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer_vocab)
    return peer_vocab


def load(peer: Path, root: Path) -> Any:
    """llama.cpp's library out of the folder in which it was built."""
    peer_vocab = load_peer_vocab(root)
    library = peer_vocab.load_library(peer)
    library.loader = peer_vocab  # whose function for messages the library calls
    pointer = ctypes.c_void_p
    library.llama_context_default_params.restype = _ContextParams
    library.llama_init_from_model.argtypes, library.llama_init_from_model.restype = [pointer, _ContextParams], pointer
    library.llama_batch_init.restype = _Batch
    library.llama_batch_free.argtypes = [_Batch]
    library.llama_decode.argtypes = [pointer, _Batch]
    for read in (library.llama_get_logits, library.llama_get_embeddings):
        read.argtypes, read.restype = [pointer], ctypes.POINTER(ctypes.c_float)
    library.llama_get_embeddings_seq.argtypes = [pointer, ctypes.c_int32]
    library.llama_get_embeddings_seq.restype = ctypes.POINTER(ctypes.c_float)
    library.llama_free.argtypes = [pointer]
    return library


def peer_logits(library: Any, file: Path, ids: Sequence[int], vocab: int) -> np.ndarray:
    """float32 [ids, vocab] of all positions. Raises ValueError where llama.cpp cannot read the file."""
    return _computed(library, file, ids, library.llama_decode, library.llama_get_logits, (len(ids), vocab))


def peer_rows(library: Any, file: Path, ids: Sequence[int], width: int) -> np.ndarray:
    """float32 [ids, width]: what an encoder makes of each token, all of the first type. Raises as `peer_logits`."""
    how = {"embeddings": True, "pooling_type": 0}
    return _computed(library, file, ids, library.llama_decode, library.llama_get_embeddings, (len(ids), width), **how)


def peer_scores(library: Any, file: Path, ids: Sequence[int], labels: int) -> np.ndarray:
    """float32 [labels]: what a model's head makes of them. Raises as `peer_logits`."""
    how = {"embeddings": True, "pooling_type": 4}

    def read(context: Any) -> Any:
        return library.llama_get_embeddings_seq(context, 0)

    return _computed(library, file, ids, library.llama_decode, read, (labels,), **how)


def peer_vector(library: Any, file: Path, ids: Sequence[int], width: int) -> np.ndarray:
    """float32 [width]: the mean of what an encoder makes of them, through its dense layers. Raises as `peer_logits`."""
    how = {"embeddings": True, "pooling_type": 1}

    def read(context: Any) -> Any:
        return library.llama_get_embeddings_seq(context, 0)

    return _computed(library, file, ids, library.llama_decode, read, (width,), **how)


def _computed(
    library: Any, file: Path, ids: Sequence[int], run: Any, read: Any, shape: tuple[int, ...], **options: Any
) -> np.ndarray:
    """Return the result of `read` on a context after `run` has computed the ids, as an array of this shape."""
    model = library.llama_model_load_from_file(str(file).encode(), library.llama_model_default_params())
    if not model:
        raise ValueError(f"llama.cpp cannot read {file}")
    params = library.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = max(256, -(-len(ids) // 256) * 256)
    params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0  # off: scores in f32
    params.type_k = params.type_v = 0  # a cache in f32, as ours in these comparisons
    for name, value in options.items():
        setattr(params, name, value)
    context = library.llama_init_from_model(model, params)
    assert context
    batch = library.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for place, token in enumerate(ids):
        batch.token[place], batch.pos[place] = token, place
        batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, 1
    assert run(context, batch) == 0
    found = np.ctypeslib.as_array(read(context), shape).copy()
    library.llama_batch_free(batch)
    library.llama_free(context)
    library.llama_model_free(model)
    return found
