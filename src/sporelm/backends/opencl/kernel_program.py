"""Programs of OpenCL C: assembled from the files in `kernels`, compiled once, and kept as binaries on disk.

A program is a kernel file with its options, the prelude, and the snippets that it is generic over: how a number format
unpacks, how a KV cache stores. The cache's key is all of that source, the options, the device, its driver and its
platform. The folder is that of the CPU's compiled kernels, with the same rules: private, written atomically, safe for
many processes, the least recently used files removed first.
"""

import hashlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import Any, NamedTuple

import pyopencl as cl

from sporelm.backends.file_cache import ObjectCache
from sporelm.backends.log_once import warn_once
from sporelm.backends.opencl.device_selection import OpenClDevice, one_line
from sporelm.errors import BackendError

log = logging.getLogger(__name__)
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
    def has_dummy_launches(self) -> bool:
        """Whether its kernels return from dummy launches: not with several work-items in a group, which may meet at
        barriers (`prelude.h`)."""
        return dict(self.options).get("LOCAL", "1") == "1"

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


# Held during builds and first launches: PoCL does not lock the cache folder that the threads of a process share
# (`pocl_folder`).
COMPILE_LOCK = RLock()
POCL_LARGE_GRID = 65535  # from this many work-items in a dimension on, PoCL compiles another version of a kernel
DUMMY_GROUPS = 2  # in the third dimension of a dummy launch, whose work-items return at once (`prelude.h`)
LOGGED_SECONDS = 1.0  # of compilation in a step
RECOMPILE_THRESHOLD_SECONDS = 0.05  # heuristic: a slower first launch has compiled, and the binary is saved again


class LaunchVariant(NamedTuple):
    """A kernel for a size of work-groups and for small or large grids: PoCL compiles each in its first launch."""

    program: KernelProgram
    name: str
    group: tuple[int, ...]
    is_small: bool

    def compute_dummy_size(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the global and local size of a dummy launch of this variant.

        The grid is the largest small one or the smallest large one.
        """
        width, height = (*self.group, 1)[:2]
        columns = (POCL_LARGE_GRID - 1) // width if self.is_small else -(-POCL_LARGE_GRID // width)
        return (max(1, columns) * width, height, DUMMY_GROUPS), (width, height, 1)


def launch_variant(program: KernelProgram, name: str, sizes: Sequence[int], group: Sequence[int]) -> LaunchVariant:
    """Return the variant of a launch with these work-items in each dimension."""
    return LaunchVariant(program, name, tuple(group), max(sizes) < POCL_LARGE_GRID)


class ProgramCompiler:
    """Compiles programs for one device, each once."""

    def __init__(self, device: OpenClDevice, context: Any, binaries: ObjectCache | None = None) -> None:
        self.device, self.context = device, context
        self.binaries = binaries if binaries is not None else ObjectCache()
        self.num_compiled = 0  # from source, not from a binary
        self.seconds: dict[KernelProgram, float] = {}  # time spent to compile, load or save each program
        self._programs: dict[KernelProgram, Any] = {}
        self._unsaved: dict[KernelProgram, Any] = {}
        self._compiled: set[LaunchVariant] = set()
        has_division = device.device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self._flags = [EXACT_DIVISION] if has_division else []

    def kernel(self, program: KernelProgram, name: str) -> Any:
        """Return a new kernel object of a program. Raise BackendError if the driver does not compile it."""
        if program not in self._programs:
            with COMPILE_LOCK, self._time(program):
                self._programs[program] = self._build(program)
        return cl.Kernel(self._programs[program], name)

    def is_compiled(self, variant: LaunchVariant) -> bool:
        """Return whether the kernel is already compiled for this variant."""
        return variant in self._compiled

    def is_precompiled(self, variant: LaunchVariant) -> bool:
        """Return whether the variant needs no compile task. Its first launch may still finish compiling it."""
        is_built = not variant.program.has_dummy_launches and variant.program in self._programs
        return is_built or variant in self._compiled

    def compile_kernel(self, queue: Any, variant: LaunchVariant, kernel: Any) -> None:
        """Compile a kernel for a variant with a dummy launch, and wait for it.

        Some drivers, such as PoCL, finish compiling only at the first launch. All arguments must be set, to any value.
        Call `save_binaries` afterwards. A variant without dummy launches is compiled in `guard_first_launch`.
        """
        if variant in self._compiled or not variant.program.has_dummy_launches:
            return
        sizes, group = variant.compute_dummy_size()
        with self.guard_first_launch(queue, variant):
            cl.enqueue_nd_range_kernel(queue, kernel, sizes, group)

    @contextmanager
    def guard_first_launch(self, queue: Any, variant: LaunchVariant) -> Iterator[None]:
        """Hold the compile lock while the block launches a variant for the first time, and wait for that launch.

        Call `save_binaries` afterwards.
        """
        queue.finish()  # the time of earlier launches is not that of compiling
        with COMPILE_LOCK, self._time(variant.program):
            began = perf_counter()
            try:
                yield
            finally:
                queue.finish()  # a driver may still compile, also if the launch failed
            if perf_counter() - began > RECOMPILE_THRESHOLD_SECONDS and variant.program in self._programs:
                self._unsaved[variant.program] = self._programs[variant.program]
        self._compiled.add(variant)

    @contextmanager
    def log_compilation(self) -> Iterator[None]:
        """Log the programs compiled in the block if they take longer than LOGGED_SECONDS in total."""
        before = dict(self.seconds)
        try:
            yield
        finally:
            self._log_since(before)

    def _log_since(self, before: Mapping[KernelProgram, float]) -> None:
        seconds = {program: total - before.get(program, 0.0) for program, total in self.seconds.items()}
        if sum(seconds.values()) > LOGGED_SECONDS:
            shown = "; ".join(f"{program} {taken:.1f} s" for program, taken in seconds.items() if taken > 0.0)
            log.info("%s: kernels compiled during a step, %.1f s: %s", self.device.label, sum(seconds.values()), shown)

    @contextmanager
    def _time(self, program: KernelProgram) -> Iterator[None]:
        """Add the duration of the block to the compile time of a program."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[program] = self.seconds.get(program, 0.0) + perf_counter() - began

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
        self._unsaved[program] = built
        return built

    def _warn(self) -> None:
        """Log once per process why the program just compiled is not kept."""
        refusal = self.binaries.refusal
        if refusal:
            warn_once(
                log, f"OpenCL programs are compiled at every start: {refusal} (SPORE_KERNEL_CACHE names the folder)"
            )

    def save_binaries(self) -> None:
        """Keep the binaries of programs that were compiled from source.

        Call it after `compile_kernel` or a first launch: some drivers finish a kernel only then, and include it in the
        binary.
        """
        with COMPILE_LOCK:
            while self._unsaved:
                program, built = next(iter(self._unsaved.items()))
                with self._time(program):
                    try:
                        (binary,) = built.get_info(cl.program_info.BINARIES)
                    except cl.Error:
                        binary = b""
                    if binary:
                        self.binaries.put(self.key(program), binary)
                del self._unsaved[program]


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
        compiler.compile_kernel(queue, launch_variant(program, name, (1,), (1,)), kernel)
        compiler.save_binaries()
        cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
        cl.enqueue_copy(queue, found, target, is_blocking=True)
    except (BackendError, cl.Error):
        return False
    return True
