"""Keys and files of compiled kernels: what a key depends on, damage, and compilation without a folder."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llvmlite import ir

from sporelm.backends.cpu import targets
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val
from sporelm.backends.cpu.jit import compiler as compiler_module
from sporelm.backends.cpu.jit import object_cache as cache_module
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.jit.object_cache import QUANT_TABLES, RANK_PROTOCOL
from sporelm.backends.file_cache import DIGEST_BYTES, ObjectCache
from sporelm.errors import BackendError, SporeError


def kernel(name: str = "test_answer", answer: int = 42) -> Kernel:
    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        k.store(k.index(answer), f.out)

    return Kernel(name, parse_fields("out:p"), body)


def best() -> Any:
    return targets.select_target("")


def test_a_second_compiler_compiles_nothing(cache: ObjectCache) -> None:
    first, second = Compiler(best(), cache), Compiler(best(), cache)
    first.address(kernel())
    first.address(kernel())
    second.address(kernel())
    assert (first.compiled, second.compiled) == (1, 0)
    assert len(cache.entries()) == 1


def test_the_key_names_all_that_the_code_depends_on(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    target = best()

    def key(target: Any = target, name: str = "test_answer") -> str:
        return Compiler(target, cache).key(kernel(name))

    keys = [key(), key(name="test_other"), key(replace(target, features=f"{target.features},+none"))]
    keys += [key(replace(target, cpu="x86-64-v2")), key(replace(target, name="other"))]
    keys += [key(replace(target, tiles=replace(target.tiles, attention_rows=7)))]
    for name in compiler_module.OP_CONSTANTS:
        with monkeypatch.context() as patch:
            patch.setitem(compiler_module.OP_CONSTANTS, name, 12345)
            keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(compiler_module, "source_digest", lambda: "other sources")
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(compiler_module.llvm, "llvm_version_info", (1, 2, 3))
        keys.append(key())
    with monkeypatch.context() as patch:
        patch.setattr(compiler_module.llvmlite, "__version__", "0.0.1")
        keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_the_digest_changes_with_any_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "backends" / "cpu"
    (folder / "jit").mkdir(parents=True)
    (folder / "kernels").mkdir()
    (tmp_path / "quant").mkdir()
    for name in QUANT_TABLES:
        (tmp_path / "quant" / name).write_text("table")
    (tmp_path / "distributed").mkdir()
    for name in RANK_PROTOCOL:
        (tmp_path / "distributed" / name).write_text("numbers")
    (folder / "jit" / "cache.py").write_text("a")
    (folder / "kernels" / "x.py").write_text("b")
    monkeypatch.setattr(cache_module, "__file__", str(folder / "jit" / "cache.py"))
    digest = cache_module.source_digest.__wrapped__
    before = digest()
    assert digest() == before
    (folder / "kernels" / "x.py").write_text("c")
    changed = digest()
    (folder / "kernels" / "x.py").rename(folder / "kernels" / "y.py")
    renamed = digest()
    (folder / "kernels" / "z.py").write_text("")
    more = digest()
    (tmp_path / "quant" / QUANT_TABLES[0]).write_text("other")
    table = digest()
    (tmp_path / "distributed" / RANK_PROTOCOL[0]).write_text("other")
    assert len({before, changed, renamed, more, table, digest()}) == 6


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "foreign"])
def test_a_damaged_file_is_compiled_again(cache: ObjectCache, damage: str) -> None:
    first = Compiler(best(), cache)
    first.address(kernel())
    path = cache.path(first.key(kernel()))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[DIGEST_BYTES + 100] ^= 1
    path.write_bytes({"cut": whole[:-7], "flipped": flipped, "emptied": b"", "foreign": b"#!/bin/sh\n" * 9}[damage])
    second = Compiler(best(), cache)
    second.address(kernel())
    assert second.compiled == 1
    assert path.read_bytes() == whole, "and mended"


def test_without_a_folder_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ObjectCache(tmp_path / "file" / "kernels")
    assert cache.refusal is not None
    assert str(tmp_path) in cache.refusal
    compiler = Compiler(best(), cache)
    assert compiler.address(kernel()) != 0
    assert compiler.compiled == 1


def test_a_folder_that_stops_taking_files_is_given_up(cache: ObjectCache, caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler(best(), cache)
    cache.folder.rmdir()
    cache.folder.write_text("a file now")
    assert compiler.address(kernel()) != 0
    assert cache.refusal is not None
    assert cache.refusal in caplog.text


def test_a_refusal_is_told_once_when_something_is_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        compiler = Compiler(best(), ObjectCache(tmp_path / "file" / "kernels"))
        compiler.address(kernel("test_one"))
        compiler.address(kernel("test_two"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert str(tmp_path / "file" / "kernels") in record.message
    assert "SPORE_KERNEL_CACHE" in record.message
    assert "\n" not in record.message


def test_a_cache_that_works_says_nothing(cache: ObjectCache, caplog: pytest.LogCaptureFixture) -> None:
    Compiler(best(), cache).address(kernel())
    assert not caplog.records


def test_kernels_take_nothing_from_elsewhere_that_the_key_lacks(root: Path) -> None:
    """A traced kernel depends on this back-end's sources, the tables of formats, the protocol of ranks, the target and
    a few numbers."""
    folder = root / "src" / "sporelm" / "backends" / "cpu"
    rooms = ("kernels", "formats", "quantizers", "targets")
    traced = [path for room in rooms for path in (folder / room).rglob("*.py")]
    foreign = {
        line.strip()
        for path in traced
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) sporelm\b(?!\.backends\.cpu)", line)
    }
    harmless = {
        "from sporelm import settings",
        "from sporelm.errors import BackendError",
        "from sporelm.errors import UnsupportedOp",
    }
    # names of kinds of rows, which select records; formats/activation_records.py holds the layout of records itself
    harmless |= {
        "from sporelm.ops.quantize_rows import INT8_32, INT8_256",
        "from sporelm.ops.quantize_rows import INT8_32",
    }
    harmless.add(
        "from sporelm.ops.quantize_rows import INT8_32, ROW_FORMATS"
    )  # how long a run is stands in the kernel's name
    tables = {name.partition(".")[0] for name in QUANT_TABLES}
    taken = {line for line in foreign if re.match(rf"from sporelm\.quant\.({'|'.join(tables)}) import", line)}
    assert {line.split()[1].rpartition(".")[2] for line in taken} == tables
    protocol = {line for line in foreign if line.split()[1].startswith("sporelm.distributed.")}
    assert {line.split()[1].rpartition(".")[2] + ".py" for line in protocol} == {*RANK_PROTOCOL}
    numbers = [line.partition(" import ")[2].split(", ") for line in foreign - harmless - taken - protocol]
    assert {name for line in numbers for name in line} == compiler_module.OP_CONSTANTS.keys()


def test_resting_needs_no_map_of_the_process(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may hide /proc; nothing is read where nothing was loaded since the last rest."""
    asked: list[Any] = []

    def hidden(*args: Any, **options: Any) -> Any:
        asked.append(args)
        raise FileNotFoundError(2, "no such file", "/proc/self/maps")

    monkeypatch.setattr(compiler_module, "open", hidden, raising=False)
    monkeypatch.setattr(compiler_module.sys, "platform", "linux")
    compiler = Compiler(best(), cache)
    compiler.release_llvm_memory()
    compiler.release_llvm_memory()
    assert len(asked) == 1
    compiler.address(kernel())
    compiler.release_llvm_memory()
    assert len(asked) == 2


def test_a_llvmlite_without_its_list_of_attributes_is_named(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ir.values.FunctionAttributes, "_known", None)
    with pytest.raises(BackendError, match=r"llvmlite \S+ .*install 'llvmlite<"):
        Compiler(best(), cache).address(kernel())


def test_two_kernels_of_one_name_in_one_process_are_the_same_code(cache: ObjectCache) -> None:
    """Check that nothing but the name distinguishes kernels."""
    compiler = Compiler(best(), cache)
    assert compiler.address(kernel(answer=1)) == compiler.address(kernel(answer=2))


def test_an_unknown_target_is_named_with_those_there_are() -> None:
    with pytest.raises(SporeError, match=r"CPU target: .*'z80'.*generic.*SPORE_CPU_TARGET"):
        targets.select_target("z80")


def test_every_target_can_be_chosen_by_name() -> None:
    assert "generic" in targets.available_targets()
    for name, target in targets.available_targets().items():
        assert targets.select_target(name).name == target.name == name
