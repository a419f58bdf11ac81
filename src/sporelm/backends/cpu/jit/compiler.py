"""Compilation of kernels to native code: emit, cache, load."""

import contextlib
import ctypes
import hashlib
import logging
import mmap
import sys
import threading
from time import perf_counter
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from sporelm.backends.cpu.jit.emission import native_triple, optimize, target_machine
from sporelm.backends.cpu.jit.kernel import Traceable
from sporelm.backends.cpu.jit.object_cache import ObjectCache, source_digest
from sporelm.backends.log_once import warn_once
from sporelm.ops.expert_routing import MAX_EXPERTS
from sporelm.ops.gated_lru import SHARPNESS
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.topk_indexer import NO_SLOT
from sporelm.ops.wkv import MAX_DECAY, MIN_LENGTH

log = logging.getLogger(__name__)
# Numbers that kernels take from the references of ops.
OP_CONSTANTS = {"PAGE": PAGE, "MAX_EXPERTS": MAX_EXPERTS, "SHARPNESS": SHARPNESS, "NO_SLOT": NO_SLOT}
OP_CONSTANTS |= {"MAX_DECAY": MAX_DECAY, "MIN_LENGTH": MIN_LENGTH}


class Compiler:
    """Returns each kernel's native address. A kernel is compiled once per process at most and, with the cache, once per
    machine."""

    def __init__(self, target: Any, cache: ObjectCache | None = None) -> None:
        self.target, self.cache = target, cache or ObjectCache()
        self.seconds = 0.0
        self.compiled = 0
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._machine = target_machine(target)
        _add_windows_symbols()
        # `use_lmm` reserves memory for each object in one piece. LLVM's own manager may place constants out of reach of
        # their code when the process has mapped many gigabytes, and the relocation ends the process.
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(target), use_lmm=True)
        self._idle = False  # since `rest`
        # a target's repr has its name, CPU, features and tiles
        versions = (llvmlite.__version__, str(llvm.llvm_version_info))
        parts = (source_digest(), native_triple(), repr(target), repr(OP_CONSTANTS), *versions)
        self._salt = "\0".join(parts)

    def key(self, kernel: Traceable) -> str:
        """Return the cache key, which covers everything that the object code depends on."""
        return hashlib.sha256(f"{self._salt}\0{kernel.name}".encode()).hexdigest()

    def address(self, kernel: Traceable) -> int:
        """Return the native address of the kernel's function."""
        with self._lock:
            found = self._addresses.get(kernel.name)
            if found is None:
                start = perf_counter()
                self._idle = False
                key = self.key(kernel)
                code = self.cache.get(key)
                if code is None:
                    code = self.emit(kernel)
                    self.cache.put(key, code)
                    self.compiled += 1
                    self._warn()
                self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
                self._engine.finalize_object()
                found = self._addresses[kernel.name] = self._engine.get_function_address(kernel.name)
                self.seconds += perf_counter() - start
            return found

    def _warn(self) -> None:
        """Log once per process why the code just compiled is not cached."""
        refusal = self.cache.refusal
        if refusal:
            warn_once(log, f"kernels are compiled at every start: {refusal} (SPORE_KERNEL_CACHE names the folder)")

    def symbol(self, name: str) -> int:
        """Return the native address of another function of a loaded module."""
        return int(self._engine.get_function_address(name))

    def release_llvm_memory(self) -> None:
        """Release the pages of LLVM's own code, tens of megabytes that only compilation needs. They are read again when
        used.

        On Linux only, where a process can do so for a mapped library. Does nothing if the process may not read its
        maps, or if no kernel was loaded since.
        """
        if sys.platform != "linux":
            return
        with self._lock, contextlib.suppress(OSError):
            if self._idle:
                return
            self._idle = True
            library = ctypes.CDLL(None)
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                code = [line.split()[0] for line in maps if "libllvmlite" in line and "r-xp" in line]
            for span in code:
                start, stop = (int(address, 16) for address in span.split("-"))
                library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)

    def emit(self, kernel: Traceable) -> bytes:
        """Compile a kernel to object code."""
        code: bytes = self._machine.emit_object(optimize(kernel, self.target, self._machine))
        return code

    def assembly(self, kernel: Traceable) -> str:
        """Return the assembly text of a kernel, for tests and for reading."""
        text: str = self._machine.emit_assembly(optimize(kernel, self.target, self._machine))
        return text


# Functions that kernels may call on Windows, and their libraries: stack probes of large frames and runs of zeros.
# Elsewhere the loader finds such names in the process.
WINDOWS_SYMBOLS = {"__chkstk": "ntdll", "memset": "ntdll"}


def _add_windows_symbols() -> None:
    """Tell LLVM's loader the addresses of the system's functions, on Windows."""
    if sys.platform == "win32":
        for name, library in WINDOWS_SYMBOLS.items():
            address = ctypes.cast(ctypes.WinDLL(library)[name], ctypes.c_void_p).value
            llvm.add_symbol(name, address)
