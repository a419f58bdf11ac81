"""Writing: nothing is overwritten or left half done, whatever goes wrong; and little memory is used."""

import errno
import os
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gguf_models import contents, write_model
from sporelm.errors import ModelFileError, RequestError
from sporelm.files import atomic_write
from sporelm.files.gguf import GgufWriter
from sporelm.quant import F16, Q8_0
from sporelm.tools import split_model
from sporelm.tools.convert import convert_model
from sporelm.tools.lazy_model import LazyModel, LazyTensor, open_lazy_model
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.tools.steps import parse_steps

OLD = b"the old file"


def failing(model: LazyModel, error: BaseException, after: int = 3) -> LazyModel:
    """The model with a tensor, number `after`, whose read raises an error."""

    def read(start: int, stop: int) -> np.ndarray:
        raise error

    tensors = list(model.tensors)
    tensors[after] = replace(tensors[after], read=read)
    return replace(model, tensors=tensors)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", matrices=Q8_0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where it is written to: an old file is there."""
    path = tmp_path / "out"
    path.mkdir()
    (path / "new.gguf").write_bytes(OLD)
    return path


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), OSError(errno.EIO, "bad disk")])
def test_an_interrupt_leaves_the_old_file(source: Path, folder: Path, error: BaseException) -> None:
    wanted = RequestError if isinstance(error, OSError) else type(error)
    with pytest.raises(wanted):
        save_models([OutputFile(folder / "new.gguf", failing(open_lazy_model(source), error))], force=True)
    assert names(folder) == ["new.gguf"]
    assert (folder / "new.gguf").read_bytes() == OLD


class FullDisk:
    """A file that takes some bytes, and then no more."""

    def __init__(self, file, left: int) -> None:
        self.file = file
        self.num_remaining = left

    def write(self, data) -> int:
        self.num_remaining -= len(data)
        if self.num_remaining < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()


@pytest.mark.parametrize("left", [0, 100, 30_000])
def test_a_full_disk_leaves_the_old_file(
    source: Path, folder: Path, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_to = GgufWriter.write_to
    monkeypatch.setattr(
        GgufWriter, "write_to", lambda writer, file, **options: write_to(writer, FullDisk(file, left), **options)
    )
    with pytest.raises(RequestError, match=r"new.gguf cannot be written: .*No space left"):
        save_models([OutputFile(folder / "new.gguf", open_lazy_model(source))], force=True)
    assert names(folder) == ["new.gguf"]
    assert (folder / "new.gguf").read_bytes() == OLD


def test_all_files_of_a_split_or_none(source: Path, folder: Path) -> None:
    (folder / "new.gguf").unlink()
    outputs = split_model.split_model(
        open_lazy_model(source), folder / "p", partial(split_model.group_by_count, maximum=10)
    )
    outputs[2] = OutputFile(outputs[2].path, failing(outputs[2].model, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        save_models(outputs)
    assert names(folder) == []


def test_a_rename_that_fails_takes_the_others_back(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.gguf").write_bytes(b"older")
    model, move = open_lazy_model(source), Path.replace

    def fail(path: Path, target: Path) -> Path:
        if target.name == "z.gguf":
            raise PermissionError(errno.EACCES, "in use")
        return move(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RequestError, match="in use"):
        save_models(
            [OutputFile(folder / name, model) for name in ("b.gguf", "a.gguf", "new.gguf", "z.gguf")], force=True
        )
    assert names(folder) == ["a.gguf", "new.gguf"]
    assert (folder / "a.gguf").read_bytes() == b"older"
    assert (folder / "new.gguf").read_bytes() == OLD


def test_several_files_are_overwritten(source: Path, folder: Path) -> None:
    model = open_lazy_model(source)
    save_models([OutputFile(folder / name, model) for name in ("new.gguf", "b.gguf")], force=True)
    assert names(folder) == ["b.gguf", "new.gguf"]
    assert contents(folder / "new.gguf") == contents(folder / "b.gguf") == contents(source)


def test_places_that_are_refused(source: Path, folder: Path) -> None:
    model = open_lazy_model(source)
    for path, match in (
        (folder / "new.gguf", "is there already; --force"),
        (folder, "is a folder"),
        (folder / "no" / "x.gguf", "there is no folder"),
    ):
        with pytest.raises(RequestError, match=match):
            save_models([OutputFile(path, model)])
    with pytest.raises(RequestError, match="written twice"):
        save_models([OutputFile(folder / "x.gguf", model)] * 2)
    assert names(folder) == ["new.gguf"]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="this user may write everywhere")
def test_a_folder_that_is_read_only(source: Path, folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(RequestError, match="cannot be written"):
        save_models([OutputFile(folder / "x.gguf", open_lazy_model(source))])
    folder.chmod(0o700)
    assert names(folder) == ["new.gguf"]


def test_a_folder_that_refuses_new_files(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *args, **options) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system", str(path))

    output = OutputFile(folder / "new.gguf", open_lazy_model(source))
    with monkeypatch.context() as patch:
        patch.setattr(atomic_write, "open", refuse, raising=False)
        with pytest.raises(RequestError, match="Read-only file system"):
            save_models([output], force=True)
    assert (folder / "new.gguf").read_bytes() == OLD


def test_the_disk_is_measured_first(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10_000, 0, 10_000))
    with pytest.raises(RequestError, match=r"has 0.0 MB free, \d+\.\d MB are needed"):
        save_models([OutputFile(folder / "x.gguf", open_lazy_model(source))])
    assert names(folder) == ["new.gguf"]


def test_sizes_are_known_before(source: Path, folder: Path) -> None:
    outputs = [OutputFile(folder / "x.gguf", open_lazy_model(source))]
    told = save_models(outputs, dry_run=True)
    assert names(folder) == ["new.gguf"]
    assert save_models(outputs) == told
    assert told[0].nbytes == (folder / "x.gguf").stat().st_size
    assert told[0].as_json() == {
        "path": str(folder / "x.gguf"), "bytes": told[0].nbytes, "metadata": 12, "tensors": 29,
    }  # fmt: skip


def test_progress_ends_at_the_end(source: Path, folder: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    save_models([OutputFile(folder / "x.gguf", open_lazy_model(source))], progress=lambda *step: seen.append(step))
    total = sum(tensor.nbytes for tensor in open_lazy_model(source).tensors)
    assert seen[-1] == ("writing", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.mark.parametrize("steps", ["cast:linear:F16", "permute-qk -> merge-linear -> sort"])
def test_an_output_may_be_its_input(source: Path, steps: str) -> None:
    expected = source.with_name("elsewhere.gguf")
    make: Callable[[Path], OutputFile] = lambda path: convert_model(open_lazy_model(source), parse_steps([steps]), path)  # noqa: E731
    save_models([make(expected)])
    save_models([make(source)], force=True)
    assert source.read_bytes() == expected.read_bytes()


def test_the_mode_of_an_old_file_is_kept(source: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has no such modes")
    source.chmod(0o640)
    save_models([OutputFile(source, open_lazy_model(source))], force=True)
    assert source.stat().st_mode & 0o777 == 0o640


def test_a_source_that_changes_is_noticed(source: Path, folder: Path) -> None:
    model = open_lazy_model(source)
    os.truncate(source, source.stat().st_size - 64)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        save_models([OutputFile(folder / "x.gguf", model)])
    assert names(folder) == ["new.gguf"]


def test_a_tensor_that_gives_too_little(source: Path, folder: Path) -> None:
    model = open_lazy_model(source)
    short = replace(model.tensors[0], read=lambda start, stop: np.zeros((1, 34), np.uint8))
    with pytest.raises(RequestError, match="bytes, 34 were made for it"):
        save_models([OutputFile(folder / "x.gguf", replace(model, tensors=[short]))])
    assert names(folder) == ["new.gguf"]


def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    blocks, nbytes = np.zeros((1 << 19, 2), np.uint8), 128 << 20

    def read(start: int, stop: int) -> np.ndarray:
        return blocks[: stop - start]

    tensor = LazyTensor("blk.0.ffn_up.weight", F16.ggml_id, (8192, nbytes // 2 // 8192), read)
    model = LazyModel({}, [tensor], "little", 3)
    tracemalloc.start()
    save_models([convert_model(model, parse_steps(["cast:linear:Q8_0"]), tmp_path / "x.gguf")])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
