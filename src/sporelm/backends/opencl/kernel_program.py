"""Programs of OpenCL C: assembled from the files in `kernels`, compiled once, and kept as binaries on disk.

A program is a kernel file with its options, the prelude, and the snippets that it is generic over: how a number format
unpacks, how a KV cache stores. The cache's key is all of that source, the options, the device, its driver and its
platform. The folder is that of the CPU's compiled kernels, with the same rules: private, written atomically, safe for
many processes, the least recently used files removed first.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple

import pyopencl as cl

from sporelm.backends.file_cache import ObjectCache
from sporelm.backends.opencl.device_selection import OpenClDevice, one_line
from sporelm.errors import BackendError

log = logging.getLogger(__name__)
logged_refusals: set[str] = set()  # that were logged already, once a process
SOURCES = Path(__file__).parent / "kernels"
EXACT_DIVISION = "-cl-fp32-correctly-rounded-divide-sqrt"
LANGUAGE = "-cl-std=CL1.2"
# Some drivers have the functions of cl_khr_integer_dot_product only in a later language.
DOT_FILE, EMULATED_DOT_FILE = "dots/packed.h", "dots/emulated.h"
LATER_LANGUAGES = (((3, 0), "-cl-std=CL3.0"), ((2, 0), "-cl-std=CL2.0"))


@dataclass(frozen=True)
class KernelProgram:
    """A kernel file with its options and snippets.

    file      name in `kernels`, without suffix
    options   macros by name, in the order of their names
    snippets  files in `kernels`, without suffix, that come before it
    """

    file: str
    options: tuple[tuple[str, str], ...]
    snippets: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Return the whole source."""
        macros = "".join(f"#define {name} {value}\n" for name, value in self.options)
        return macros + "".join(read_source(name) for name in ("prelude.h", *self.snippets, f"{self.file}.cl"))

    def __str__(self) -> str:
        shown = " ".join(f"{name}={value}" for name, value in self.options)
        return f"{self.file}.cl ({', '.join((shown, *self.snippets))})"


def kernel_program(file: str, options: Mapping[str, Any], snippets: Sequence[str] = ()) -> KernelProgram:
    """Return a program. Options that are false or None are left out, true ones are 1."""
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    macros = {name: "1" if value is True else str(value) for name, value in given.items()}
    return KernelProgram(file, tuple(sorted(macros.items())), tuple(snippets))


@cache
def read_source(name: str) -> str:
    """Return a file of `kernels`."""
    return (SOURCES / name).read_text("utf-8")


# Held while a driver compiles: in builds, and in launches that make PoCL compile. Threads of several models would
# compile in one folder, which it does not lock (`pocl_folder`).
COMPILE_LOCK = RLock()
POCL_SMALL_GRID = 65535  # with this many work-items in a dimension PoCL compiles a kernel again


class LaunchVariant(NamedTuple):
    """A kernel for a size of work-groups and for small or large grids: PoCL compiles each in its first launch."""

    program: KernelProgram
    name: str
    group: tuple[int, ...]
    is_small: bool


def launch_variant(program: KernelProgram, name: str, sizes: Sequence[int], group: Sequence[int]) -> LaunchVariant:
    """Return the variant of a launch with these work-items in each dimension."""
    return LaunchVariant(program, name, tuple(group), max(sizes) < POCL_SMALL_GRID)


class ProgramCompiler:
    """Compiles programs for one device, each once."""

    def __init__(self, device: OpenClDevice, context: Any, binaries: ObjectCache | None = None) -> None:
        self.device, self.context = device, context
        self.binaries = binaries if binaries is not None else ObjectCache()
        self.num_compiled = 0  # from source, not from a binary
        self.compile_s = 0.0
        self._programs: dict[KernelProgram, Any] = {}
        self._unsaved: dict[str, Any] = {}
        self._launched: set[LaunchVariant] = set()
        has_division = device.device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self._flags = [EXACT_DIVISION] if has_division else []

    def kernel(self, program: KernelProgram, name: str) -> Any:
        """Return a new kernel object of a program. Raise BackendError if the driver does not compile it."""
        if program not in self._programs:
            began = perf_counter()
            with COMPILE_LOCK:
                self._programs[program] = self._build(program)
            self.compile_s += perf_counter() - began
        return cl.Kernel(self._programs[program], name)

    def flags(self, program: KernelProgram) -> list[str]:
        """Return the options of the driver's compiler."""
        language = LANGUAGE
        if DOT_FILE in program.snippets and EMULATED_DOT_FILE not in program.snippets:
            later = (name for version, name in LATER_LANGUAGES if self.device.version >= version)
            language = next(later, LANGUAGE)
        return [language, *self._flags]

    def key(self, program: KernelProgram) -> str:
        """Return the name under which the binary of a program is kept."""
        cl_device = self.device.device
        parts = (
            program.source,
            *self.flags(program),
            cl_device.name,
            cl_device.version,
            cl_device.driver_version,
            cl_device.platform.version,
        )
        return "cl-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    def _build(self, program: KernelProgram) -> Any:
        key, flags = self.key(program), self.flags(program)
        binary = self.binaries.get(key)
        if binary is not None:
            try:
                return build_program(cl.Program(self.context, [self.device.device], [binary]), flags)
            except cl.Error:  # of another build of the driver under the same version: compile again
                pass
        try:
            built = build_program(cl.Program(self.context, program.source), flags)
        except cl.Error as error:
            raise BackendError(
                f"device {self.device.label}: its driver does not compile {program}: {_first_error(str(error))}. "
                "Update the driver, or choose another device with the option device."
            ) from error
        self.num_compiled += 1
        self._warn()
        self._unsaved[key] = built
        return built

    def _warn(self) -> None:
        """Log once per process why the program just compiled is not kept."""
        refusal = self.binaries.refusal
        if refusal and refusal not in logged_refusals:
            logged_refusals.add(refusal)
            log.warning(
                "OpenCL programs are compiled at every start: %s (SPORE_KERNEL_CACHE names the folder)", refusal
            )

    @contextmanager
    def guard_compilation(self, queue: Any, variants: Iterable[LaunchVariant]) -> Iterator[None]:
        """Launch these variants in the block. If PoCL compiles one of them, no other thread compiles meanwhile."""
        new = set(variants) - self._launched
        if not new:
            yield
            return
        with COMPILE_LOCK if self.device.is_pocl else nullcontext():
            yield
            if self.device.is_pocl:
                queue.finish()
            self.save_binaries()
        self._launched |= new

    def save_binaries(self) -> None:
        """Keep the binaries of programs that were compiled from source.

        Called after their first run: some drivers finish a kernel only then, and have the result in the binary.
        """
        for key, built in self._unsaved.items():
            try:
                (binary,) = built.get_info(cl.program_info.BINARIES)
            except cl.Error:
                continue
            if binary:
                self.binaries.put(key, binary)
        self._unsaved.clear()


def build_program(program: Any, flags: Sequence[str]) -> Any:
    """Build a program of pyopencl without pyopencl's cache, and without its warning for each log that is not empty.

    That cache does not check its files, and leaves the source of a program that does not compile in a temporary file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.get_info(cl.program_info.REFERENCE_COUNT)  # creates the driver's program: then it is built directly
        return program.build(list(flags), cache_dir=False)


def _first_error(log: str) -> str:
    """Return the first line of a compiler's log that says "error:", without the path before it, else the first line."""
    lines = log.splitlines()
    errors = [line.partition("error:")[2] for line in lines if "error:" in line]
    return one_line(next(iter(errors + lines), "no reason")).rstrip(".")


def run_probe(
    compiler: ProgramCompiler, queue: Any, program: KernelProgram, name: str, inputs: Sequence[Any], found: Any
) -> bool:
    """Run one work-item of a kernel on arrays, and read its results into the array `found`. Return whether the driver
    compiles and runs it."""
    flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
    try:
        buffers = [cl.Buffer(compiler.context, flags, hostbuf=array) for array in inputs]
        target = cl.Buffer(compiler.context, cl.mem_flags.WRITE_ONLY, found.nbytes)
        kernel = compiler.kernel(program, name)
        kernel.set_args(*buffers, target)
        with compiler.guard_compilation(queue, [launch_variant(program, name, (1,), (1,))]):
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, found, target, is_blocking=True)
    except (BackendError, cl.Error):
        return False
    return True
