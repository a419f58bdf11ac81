"""Kernels and their constants stay within reach of each other, however much memory the process has mapped."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val, emit_object_for
from sporelm.backends.cpu.jit.emission import target_machine
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.jit.ssa_values import f32, i8
from sporelm.backends.file_cache import ObjectCache
from unit.backends.cpu.other_machines import AVX2_TARGET, WINDOWS

x86 = pytest.mark.skipif(not targets.select_target("").name.startswith("avx"), reason="other CPUs reach further")


def table_kernel(number: int, rows: int) -> Kernel:
    """Return a kernel that writes `rows` constants of 64 bytes each."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        for row in range(rows):
            k.store(k.constants(f32, [number * 1000 + row * 16 + lane for lane in range(16)]), f.out, 64 * row)

    return Kernel(f"table_{number}", parse_fields("out:p"), body)


def zero_kernel(frame_bytes: int = 0) -> Kernel:
    """Return a kernel that clears memory, which LLVM does with `memset`, and has a frame of this size."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        out = f.out
        if frame_bytes:
            frame = k.opaque(Val(k, k.ir.alloca(i8, frame_bytes)))
            k.atomic_store(k.index(3), frame)
            k.store(k.atomic_load(frame), out, 8 * 8000)
        with k.range(8000) as index:
            k.store(k.index(0), out, index * 8)

    return Kernel(f"zero_{frame_bytes}", parse_fields("out:p"), body)


def run(address: int, out: np.ndarray) -> None:
    descriptor = np.array([out.ctypes.data], np.int64)
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(address)(descriptor.ctypes.data, 0, 0, 0)


def reserve_around(library: Any) -> None:
    """Map 5 GB of addresses, and every gap that is left near other mappings. Uses no memory."""
    private, reserved, fixed = 0x2, 0x4020, 0x100000
    library.mmap(None, 5 << 30, 0, private | reserved, -1, 0)
    end = 0
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        spans = [[int(address, 16) for address in line.split()[0].split("-")] for line in maps]
    for start, stop in spans:
        if end and 0 < start - end < 64 << 20:
            library.mmap(end, start - end, 0, private | reserved | fixed, -1, 0)
        end = stop


def load_far_apart(folder: Path) -> None:
    """Load kernels with 5 GB mapped between one and the next. Ends the process if their constants are too far."""
    library: Any = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    compiler = Compiler(targets.select_target(""), ObjectCache(folder))
    for number in range(12):
        # a table of 4096 bytes leaves a free page beside it, which LLVM's own manager gives to the next table
        rows = (64, 60)[number % 2]
        out = np.zeros(16 * rows, np.float32)
        run(compiler.address(table_kernel(number, rows)), out)
        assert (out == number * 1000 + np.arange(16 * rows)).all()
        reserve_around(library)
    zeros = np.ones(8001, np.int64)
    run(compiler.address(zero_kernel()), zeros)
    assert not zeros[:8000].any()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_constants_are_in_reach_with_many_gigabytes_mapped(root: Path, tmp_path: Path) -> None:
    program = "import sys; from pathlib import Path; from unit.backends.cpu.test_code_reach import load_far_apart;"
    command = [sys.executable, "-c", f"{program} load_far_apart(Path(sys.argv[1]))", str(tmp_path / "kernels")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(root / "src"), str(root / "tests")))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr


@x86
@pytest.mark.parametrize("frame_bytes", [0, 20000])
def test_calls_of_foreign_functions_fit_into_the_reservation(cache: ObjectCache, frame_bytes: int) -> None:
    """A call adds the function's address to an object's memory when it is loaded, on Windows that of a stack probe
    too."""
    out = np.ones(8001, np.int64)
    compiler = Compiler(targets.select_target(""), cache)
    run(compiler.address(zero_kernel(frame_bytes)), out)
    assert not out[:8000].any()
    code = emit_object_for(zero_kernel(frame_bytes), AVX2_TARGET, WINDOWS)
    llvm.add_symbol("__chkstk", ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value)  # is not called here
    machine = target_machine(targets.select_target(""))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine, use_lmm=True)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    assert (b"__chkstk" in code) == bool(frame_bytes)
