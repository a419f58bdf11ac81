"""Programs: compiled once, kept as binaries, compiled again when a binary is damaged; errors of the compiler."""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.backends.file_cache import DIGEST_BYTES, ObjectCache
from sporelm.errors import BackendError

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import pyopencl
import pyopencl.characterize

from sporelm import ops
from sporelm.backends.opencl import kernel_program as module
from sporelm.backends.opencl.integer_dots import list_dot_snippets
from sporelm.backends.opencl.kernel_program import (
    SOURCES,
    LaunchVariant,
    ProgramCompiler,
    kernel_program,
    launch_variant,
)

PROGRAM = kernel_program("conversion", {"WIDEN": False, "VEC": 4, "LOCAL": 1})


@pytest.fixture
def open_compiler(opencl: Any, tmp_path: Path) -> Any:
    """Compilers with one folder of binaries."""

    def open_one() -> ProgramCompiler:
        return ProgramCompiler(opencl.device, opencl.cl_context, ObjectCache(tmp_path / "binaries", 1 << 24))

    return open_one


def run(opencl: Any, compiler: ProgramCompiler) -> None:
    """Run the program, as drivers finish some kernels only then."""
    source, target = opencl.copy_to_buffer(np.ones(4, np.float32)), opencl.allocate_buffer(8, "a test")
    kernel = compiler.kernel(PROGRAM, "convert_numbers")
    kernel(opencl.queue, (4,), (1,), source, target, np.int32(4))
    opencl.queue.finish()
    compiler.save_binaries()


def test_options_are_macros_in_order() -> None:
    program = kernel_program("conversion", {"B": True, "A": 3, "ABSENT": None, "OFF": False})
    assert program.source.startswith("#define A 3\n#define B 1\n//")
    assert program == kernel_program("conversion", {"A": 3, "B": True})


def test_zero_is_a_value_of_an_option() -> None:
    assert kernel_program("conversion", {"ZERO": 0, "OFF": False}).source.startswith("#define ZERO 0\n//")


def test_products_and_sums_are_not_joined_in_any_file() -> None:
    """Formats unpack to the bits of a file: the pragma stands before the first function."""
    source = kernel_program("token_embedding", {}, ["formats/q4_k.h"]).source
    assert source.index("#pragma OPENCL FP_CONTRACT OFF") < source.index("static inline")


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.*")), ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_inline_functions_are_static(path: Path) -> None:
    """Else a compiler may take the function of another file, which does not exist."""
    lines = path.read_text("utf-8").splitlines()
    assert [line for line in lines if "inline" in line.split() and not line.startswith(("static inline", "//"))] == []


def test_a_group_that_is_not_a_power_of_two_does_not_compile(open_compiler: Any) -> None:
    with pytest.raises(BackendError, match="LOCAL is not a power of two"):
        open_compiler().kernel(kernel_program("norm", {"VEC": 4, "LOCAL": 3}), "norm_rows")


def test_the_second_start_takes_the_binary(opencl: Any, open_compiler: Any) -> None:
    first = open_compiler()
    for _ in range(2):
        run(opencl, first)
    assert first.num_compiled == 1
    second = open_compiler()
    run(opencl, second)
    assert second.num_compiled == 0


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "shorter than its digest": lambda content: content[: DIGEST_BYTES - 1],
    "without content": lambda content: content[:DIGEST_BYTES],
    "truncated": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"x",
    "with another byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_binary_never_reaches_the_driver(opencl: Any, open_compiler: Any, damage: str) -> None:
    """It is compiled again, and replaced."""
    compiler = open_compiler()
    run(opencl, compiler)
    path = compiler.binaries.path(compiler.key(PROGRAM))
    content = path.read_bytes()
    path.write_bytes(DAMAGES[damage](content))
    again = open_compiler()
    run(opencl, again)
    assert again.num_compiled == 1
    third = open_compiler()
    run(opencl, third)
    assert third.num_compiled == 0


@pytest.mark.parametrize("place", ["folder", "dangling link", "folder without rights"])
def test_a_place_that_cannot_be_read_or_written_costs_only_time(opencl: Any, open_compiler: Any, place: str) -> None:
    compiler = open_compiler()
    path = compiler.binaries.path(compiler.key(PROGRAM))
    if place == "folder":
        path.mkdir()
    elif place == "dangling link":
        path.symlink_to(path.parent / "nothing")
    else:
        path.parent.chmod(0o755)
        compiler = open_compiler()
        assert "must be 0700" in compiler.binaries.refusal
    run(opencl, compiler)
    assert compiler.num_compiled == 1
    if place == "dangling link":
        assert path.is_file(), "the link is replaced, not followed"
        assert not path.is_symlink()


def test_a_binary_of_another_driver_is_compiled_again(opencl: Any, open_compiler: Any) -> None:
    """Its content is whole, but the driver refuses it."""
    compiler = open_compiler()
    compiler.binaries.put(compiler.key(PROGRAM), b"not a program")
    run(opencl, compiler)
    assert compiler.num_compiled == 1


def test_the_key_names_source_options_device_and_driver(opencl: Any, open_compiler: Any) -> None:
    compiler = open_compiler()
    keys = {compiler.key(PROGRAM), compiler.key(replace(PROGRAM, options=()))}
    compiler._flags = [*compiler._flags, "-D X=1"]
    assert len(keys | {compiler.key(PROGRAM)}) == 3


def test_products_of_bytes_are_compiled_in_the_language_that_has_them(opencl: Any, open_compiler: Any) -> None:
    compiler = open_compiler()
    programs = [kernel_program("dot_probe", {}, list_dot_snippets(kind)) for kind in ("packed", "emulated", "x86")]
    for version, language in (((1, 2), "CL1.2"), ((2, 1), "CL2.0"), ((3, 0), "CL3.0")):
        compiler.device = replace(opencl.device, version=version)
        languages = [compiler.flags(program)[0] for program in programs]
        assert languages == [f"-cl-std={language}", "-cl-std=CL1.2", "-cl-std=CL1.2"]


def test_an_error_of_the_drivers_compiler_is_one_line(opencl: Any, open_compiler: Any) -> None:
    broken = kernel_program("conversion", {"WIDEN": True, "vload_half": "no_such_function"})
    with pytest.raises(
        BackendError, match=r"its driver does not compile conversion.cl \(.*no_such_function.*option dev"
    ):
        open_compiler().kernel(broken, "convert_numbers")
    run(opencl, open_compiler())


def test_a_program_that_does_not_compile_leaves_no_file(
    open_compiler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyopencl saves the source beside its cache, on drivers without one of their own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(pyopencl.characterize, "has_src_build_cache", lambda device: None)
    broken = kernel_program("conversion", {"WIDEN": True, "vload_half": "no_such_function"})
    with pytest.raises(BackendError, match="does not compile"):
        open_compiler().kernel(broken, "convert_numbers")
    assert list(tmp_path.rglob("*.cl")) == []


class RecordedLock:
    """A lock that counts its blocks."""

    def __init__(self) -> None:
        self.blocks = 0

    def __enter__(self) -> None:
        self.blocks += 1

    def __exit__(self, *failure: object) -> None:
        pass


def test_only_launches_that_compile_hold_the_lock(opencl: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for small grids and once for large ones, not for each number of rows; so do timed launches."""
    x = opencl.tensor(np.ones((2, 8), np.float32))
    ops.add(x, x)  # compiles the program
    opencl.compiler._compiled.clear()
    lock = RecordedLock()
    monkeypatch.setattr(module, "COMPILE_LOCK", lock)
    for rows, expected in ((1, 2), (3, 2), (50, 2), (1 << 17, 4), (4, 4)):  # for the dummy launch and for the binary
        x = opencl.tensor(np.ones((rows, 8), np.float32))
        ops.add(x, x)
        assert lock.blocks == expected
    opencl.compiler._compiled.clear()
    opencl.time_calls()
    for _ in range(2):
        ops.add(x, x)
    assert lock.blocks == 6


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.cl")), ids=lambda path: path.stem)
def test_kernels_begin_with_the_dummy_launch_check(path: Path) -> None:
    """Only local memory comes before it."""
    bodies = re.split(r"^(?:kernel|#if|#else).*?\{\n", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    kernels = len(re.findall(r"^kernel\b", path.read_text("utf-8"), flags=re.MULTILINE))
    first = [body.removeprefix("    GROUP_MEMORY\n").startswith("    RETURN_IF_DUMMY_LAUNCH\n") for body in bodies]
    assert sum(first) == kernels > 0


def test_dummy_launch_has_the_grid_class_of_its_variant() -> None:
    for group in ((1,), (64,), (16, 4)):
        for is_small in (True, False):
            sizes, local = LaunchVariant(PROGRAM, "convert_numbers", group, is_small).compute_dummy_size()
            assert launch_variant(PROGRAM, "convert_numbers", sizes, group).is_small == is_small
            assert local == (*group, 1, 1)[:3]
            assert [size % item for size, item in zip(sizes, local, strict=True)] == [0, 0, 0]


def test_a_kernel_that_the_binary_lacks_is_added_to_it(
    opencl: Any, open_compiler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model with larger grids needs more of a program than the one that compiled it first."""
    monkeypatch.setattr(module, "RECOMPILE_THRESHOLD_SECONDS", 0.0)
    run(opencl, open_compiler())
    compiler = open_compiler()
    kernel = compiler.kernel(PROGRAM, "convert_numbers")
    buffers = [opencl.allocate_buffer(8, "a test") for _ in range(2)]  # a kernel does not keep its arguments alive
    kernel.set_args(*buffers, np.int32(0))
    path = compiler.binaries.path(compiler.key(PROGRAM))
    path.unlink()
    compiler.compile_kernel(opencl.queue, launch_variant(PROGRAM, "convert_numbers", (1,), (1,)), kernel)
    compiler.save_binaries()
    assert path.is_file()
    assert compiler.num_compiled == 0


def test_binaries_are_kept_after_timed_launches(opencl: Any, open_compiler: Any) -> None:
    opencl.compiler = open_compiler()
    opencl.time_calls()
    x = opencl.tensor(np.ones((2, 8), np.float32))
    ops.add(x, x)
    assert opencl.compiler.num_compiled == len(opencl.compiler.binaries.entries()) == 1


@pytest.mark.parametrize("path", sorted(SOURCES.rglob("*.cl")), ids=lambda path: path.stem)
def test_kernel_files_begin_with_a_comment(path: Path) -> None:
    assert path.read_text("utf-8").startswith("// ")


def test_programs_are_compared_by_their_parts() -> None:
    assert replace(PROGRAM, options=()) != PROGRAM
