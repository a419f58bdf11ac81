"""A layer of experts in ggml's CPU back-end, called through ctypes: the peer of experts.py.

Products only: gate and up, their gated product, down; choosing and summing are left out, in the peer's favour. The
structures and calls are those of the shared libraries that bench/peer.sh builds (`ggml.h`, `ggml-backend.h`).
"""

import ctypes
import sys
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import numpy as np

POINTER = ctypes.c_void_p
I32 = 26
VARIANTS = ("plain", "repacked")
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_new_tensor_2d": (POINTER, (POINTER, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)),
    "ggml_new_tensor_3d": (POINTER, (POINTER, ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)),
    "ggml_mul_mat_id": (POINTER, (POINTER, POINTER, POINTER, POINTER)),
    "ggml_swiglu_split": (POINTER, (POINTER, POINTER, POINTER)),
    "ggml_new_graph": (POINTER, (POINTER,)),
    "ggml_build_forward_expand": (None, (POINTER, POINTER)),
    "ggml_nbytes": (ctypes.c_size_t, (POINTER,)),
    "ggml_free": (None, (POINTER,)),
    "ggml_backend_alloc_ctx_tensors_from_buft": (POINTER, (POINTER, POINTER)),
    "ggml_backend_alloc_ctx_tensors": (POINTER, (POINTER, POINTER)),
    "ggml_backend_buffer_free": (None, (POINTER,)),
    "ggml_backend_tensor_set": (None, (POINTER, POINTER, ctypes.c_size_t, ctypes.c_size_t)),
    "ggml_backend_graph_compute": (ctypes.c_int, (POINTER, POINTER)),
    "ggml_backend_reg_get_proc_address": (POINTER, (POINTER, ctypes.c_char_p)),
    "ggml_backend_reg_dev_get": (POINTER, (POINTER, ctypes.c_size_t)),
    "ggml_backend_buft_name": (ctypes.c_char_p, (POINTER,)),
    "ggml_backend_cpu_init": (POINTER, ()),
    "ggml_backend_cpu_reg": (POINTER, ()),
    "ggml_backend_cpu_buffer_type": (POINTER, ()),
    "ggml_backend_cpu_set_n_threads": (None, (POINTER, ctypes.c_int)),
}


class Settings(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", POINTER), ("no_alloc", ctypes.c_bool))


class Ggml:
    """The functions of the libraries in a folder."""

    def __init__(self, folder: Path) -> None:
        ending = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
        prefix = "" if sys.platform == "win32" else "lib"
        names = [folder / f"{prefix}{name}.{ending}" for name in ("ggml-base", "ggml-cpu")]
        self._libraries = [ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL) for name in names]
        self._init = self._function("ggml_init", POINTER, (Settings,))

    def _function(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        library = self._libraries[name.startswith("ggml_backend_cpu_")]
        function = getattr(library, name)
        function.restype = result
        function.argtypes = list(arguments)
        return function

    def __call__(self, name: str, *arguments: Any) -> Any:
        return self._function(name, *SIGNATURES[name])(*arguments)

    def context(self) -> int:
        """For tensors without memory of their own."""
        return int(self._init(Settings(8 << 20, None, True)))

    def buffer_type(self, variant: str) -> int:
        """Where weights lie as in the file, or as the kernels of the CPU like them best."""
        if variant == "plain":
            return int(self("ggml_backend_cpu_buffer_type"))
        registry = self("ggml_backend_cpu_reg")
        address = self("ggml_backend_reg_get_proc_address", registry, b"ggml_backend_dev_get_extra_bufts")
        found = ctypes.CFUNCTYPE(ctypes.POINTER(POINTER), POINTER)(address)(
            self("ggml_backend_reg_dev_get", registry, 0)
        )
        number = 0
        while found[number]:
            if b"REPACK" in self("ggml_backend_buft_name", found[number]):
                return int(found[number] or 0)
            number += 1
        raise SystemExit("this ggml was built without repacked weights; leave --peer out")


class PeerLayers:
    """Layers of experts with weights of their own; `blocks` are what every matrix is filled with, again and again."""

    def __init__(self, folder: Path, variant: str, form: Any, blocks: np.ndarray, args: Any, tokens: int) -> None:
        self.ggml = Ggml(folder)
        self.args = args
        self.tokens = tokens
        call = self.ggml
        self.random = np.random.default_rng(tokens)
        sizes = ((args.width, args.ffn), (args.width, args.ffn), (args.ffn, args.width))
        self._weights = call.context()
        self._values = call.context()
        layers = [
            [call("ggml_new_tensor_3d", self._weights, form.ggml_id, *size, args.experts) for size in sizes]
            for _ in range(args.layers)
        ]
        self._buffers = [call("ggml_backend_alloc_ctx_tensors_from_buft", self._weights, call.buffer_type(variant))]
        for tensor in [tensor for layer in layers for tensor in layer]:
            nbytes = call("ggml_nbytes", tensor)
            self._set(tensor, np.resize(blocks.reshape(-1), nbytes))
        self._x = call("ggml_new_tensor_3d", self._values, 0, args.width, 1, tokens)
        self._ids = [call("ggml_new_tensor_2d", self._values, I32, args.chosen, tokens) for _ in layers]
        self._graph = call("ggml_new_graph", self._values)
        for (gate, up, down), ids in zip(layers, self._ids, strict=True):
            parts = [call("ggml_mul_mat_id", self._values, weight, self._x, ids) for weight in (gate, up)]
            hidden = call("ggml_swiglu_split", self._values, *parts)
            result = call("ggml_mul_mat_id", self._values, down, hidden, ids)
            call("ggml_build_forward_expand", self._graph, result)
        self._backend = call("ggml_backend_cpu_init")
        call("ggml_backend_cpu_set_n_threads", self._backend, args.threads)
        self._buffers.append(call("ggml_backend_alloc_ctx_tensors", self._values, self._backend))
        self.clock = thread_time if args.threads == 1 else perf_counter
        self.seconds()

    def _set(self, tensor: int, array: np.ndarray) -> None:
        self.ggml("ggml_backend_tensor_set", tensor, array.ctypes.data, 0, array.nbytes)

    def seconds(self) -> float:
        """Of all layers, with rows and choices that no step had before."""
        self._set(self._x, self.random.standard_normal((self.tokens, self.args.width), np.float32))
        for ids in self._ids:
            order = np.argsort(self.random.random((self.tokens, self.args.experts)), axis=1)
            self._set(ids, np.ascontiguousarray(order[:, : self.args.chosen], np.int32))
        start = self.clock()
        if self.ggml("ggml_backend_graph_compute", self._backend, self._graph):
            raise SystemExit("ggml could not compute the layers")
        return self.clock() - start

    def close(self) -> None:
        for buffer in self._buffers:
            self.ggml("ggml_backend_buffer_free", buffer)
        for context in (self._weights, self._values):
            self.ggml("ggml_free", context)
