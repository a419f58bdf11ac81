"""Kernels to native code: emit, keep, load."""

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

from sporelm.backends.cpu.jit.cache import ObjectCache, source_digest
from sporelm.backends.cpu.jit.emission import machine_of, native_triple, optimised
from sporelm.backends.cpu.jit.kernel import Traceable
from sporelm.ops.attention import PAGE
from sporelm.ops.gated_lru import SHARPNESS
from sporelm.ops.routing import MOST_EXPERTS
from sporelm.ops.rwkv import FASTEST, LEAST_LENGTH
from sporelm.ops.sparse import NONE

log = logging.getLogger(__name__)
# Numbers that kernels take from the meanings of ops.
TAKEN = {"PAGE": PAGE, "MOST_EXPERTS": MOST_EXPERTS, "SHARPNESS": SHARPNESS, "NONE": NONE}
TAKEN |= {"FASTEST": FASTEST, "LEAST_LENGTH": LEAST_LENGTH}
told: set[str] = set()  # what was logged already, once a process


class Compiler:
    """Gives each kernel's native address, compiling it once a process at most and, with the cache, once a machine."""

    def __init__(self, target: Any, cache: ObjectCache | None = None) -> None:
        self.target, self.cache = target, cache or ObjectCache()
        self.seconds = 0.0
        self.compiled = 0
        self._addresses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._machine = machine_of(target)
        _tell_symbols()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine_of(target))
        self._idle = False  # since `rest`
        # a target's repr has its name, CPU, features and tiles
        versions = (llvmlite.__version__, str(llvm.llvm_version_info))
        parts = (source_digest(), native_triple(), repr(target), repr(TAKEN), *versions)
        self._salt = "\0".join(parts)

    def key(self, kernel: Traceable) -> str:
        """Names everything the object code depends on."""
        return hashlib.sha256(f"{self._salt}\0{kernel.name}".encode()).hexdigest()

    def address(self, kernel: Traceable) -> int:
        """Native address of the kernel's function."""
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
        """Say, once a process, why what was just compiled is not kept."""
        refusal = self.cache.refusal
        if refusal and refusal not in told:
            told.add(refusal)
            log.warning("kernels are compiled at every start: %s (SPORE_KERNEL_CACHE names the folder)", refusal)

    def symbol(self, name: str) -> int:
        """Native address of another function of a module that was loaded."""
        return int(self._engine.get_function_address(name))

    def rest(self) -> None:
        """Give back the memory of LLVM's code, tens of megabytes that only compiling needs; it returns when used.

        On Linux alone, where a process can do so for a mapped library; nothing where it may not look at its maps, or
        where no kernel was loaded since.
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
        """Object code of a kernel."""
        code: bytes = self._machine.emit_object(optimised(kernel, self.target, self._machine))
        return code

    def assembly(self, kernel: Traceable) -> str:
        """Assembly text of a kernel, for tests and for reading."""
        text: str = self._machine.emit_assembly(optimised(kernel, self.target, self._machine))
        return text


# What kernels may call on Windows, and the library that has it: stack probes of large frames and runs of
# zeros. Elsewhere the loader finds such names in the process.
WINDOWS_SYMBOLS = {"__chkstk": "ntdll", "memset": "ntdll"}


def _tell_symbols() -> None:
    """Tell LLVM's loader where the system's functions are, on Windows."""
    if sys.platform == "win32":
        for name, library in WINDOWS_SYMBOLS.items():
            address = ctypes.cast(ctypes.WinDLL(library)[name], ctypes.c_void_p).value
            llvm.add_symbol(name, address)
