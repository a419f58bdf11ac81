"""The cache of programs between processes, on a driver that keeps a cache of its own."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from sporelm.backends.file_cache import ObjectCache

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm.backends.opencl import pocl_folder
from sporelm.backends.opencl.pocl_folder import FOLDER, LOCK_SUFFIX, PARENT_LOCK, remove_abandoned

PROGRAM = """
import numpy as np
from sporelm import ops
from sporelm.backends.backend_registry import open_backend
backend = open_backend("opencl", device={device!r})
x = backend.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
assert ops.add(x, x).numpy().tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]
backend.close()
print(backend.compiler.num_compiled, backend.compiler.binaries.refusal)
"""
NUM_PROCESSES = 3


def start(root: Path, folder: Path, device: int) -> subprocess.Popen[str]:
    environment = os.environ | {"SPORE_KERNEL_CACHE": str(folder), "PYTHONPATH": str(root / "src")}
    environment.pop("POCL_CACHE_DIR", None)
    command = [sys.executable, "-c", PROGRAM.format(device=str(device))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, (process.returncode, error)
    return out.split()


def test_many_processes_may_compile_at_once(opencl: Any, root: Path, tmp_path: Path) -> None:
    """All start with an empty cache, and ask the driver for the binaries of the same programs."""
    folder = tmp_path / "kernels"
    processes = [start(root, folder, opencl.device.number) for _ in range(NUM_PROCESSES)]
    found = [finish(process) for process in processes]
    assert all(refusal == "None" for _, refusal in found)
    assert max(int(compiled) for compiled, _ in found) >= 1
    cache = ObjectCache(folder)
    names = {path.stem for _, _, path in cache.entries()}
    assert all(cache.get(name) is not None for name in names), "every file is whole"
    left = {path.name for path in folder.iterdir()} - {f"{name}.o" for name in names}
    assert left <= {FOLDER}, "nothing is left over"
    assert [path.name for path in (folder / FOLDER).iterdir()] == [PARENT_LOCK], "processes remove their folders"
    assert finish(start(root, folder, opencl.device.number)) == ["0", "None"]


@pytest.fixture
def needs_locks(tmp_path: Path) -> None:
    with (tmp_path / "probe").open("x+b") as file:
        if not pocl_folder._lock(file):
            pytest.skip("this system has no locks of files")
    (tmp_path / "probe").unlink()


def test_folders_of_killed_processes_are_removed(tmp_path: Path, needs_locks: None) -> None:
    """A folder whose lock is held stays. One without a lock file has no process."""
    for name in ("held", "abandoned", "without a lock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.so").write_bytes(b"x")
    for name in ("held", "abandoned"):
        (tmp_path / f"{name}{LOCK_SUFFIX}").touch()
    (tmp_path / PARENT_LOCK).touch()
    with (tmp_path / f"held{LOCK_SUFFIX}").open("r+b") as file:
        assert pocl_folder._lock(file)
        remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [PARENT_LOCK, "held", f"held{LOCK_SUFFIX}"]


def test_a_new_folder_is_locked_from_the_beginning(tmp_path: Path, needs_locks: None) -> None:
    """Another process that removes folders waits until it is."""
    folder, file = pocl_folder.create_folder(tmp_path, needs_lock=True)
    remove_abandoned(tmp_path)
    assert folder.is_dir()
    file.close()
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_locked_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pocl_folder, "_lock", lambda file, **options: False)
    with pytest.raises(OSError, match="cannot be locked"):
        pocl_folder.create_folder(tmp_path, needs_lock=True)
    assert list(tmp_path.iterdir()) == []
    folder, file = pocl_folder.create_folder(tmp_path, needs_lock=False)
    assert folder.is_dir(), "a system without locks: no process removes folders of others"
    file.close()


def test_one_process_at_a_time_creates_and_removes_folders(tmp_path: Path, needs_locks: None) -> None:
    entered = Event()

    def enter() -> None:
        with pocl_folder.lock_parent(tmp_path):
            entered.set()

    thread = Thread(target=enter)
    with pocl_folder.lock_parent(tmp_path) as is_locked:
        assert is_locked
        thread.start()
        assert not entered.wait(0.1)
    thread.join()
    assert entered.is_set()


def test_a_folder_that_cannot_be_written_is_named_and_the_device_used_all_the_same(tmp_path: Path) -> None:
    """In a process of its own: PoCL then gets a temporary folder, which is gone afterwards."""
    code = """
import logging, os
import numpy as np
from sporelm import ops
from sporelm.backends.opencl import OpenClBackend
logging.basicConfig(format="%(message)s")
backend = OpenClBackend()
print(ops.argmax(backend.tensor(np.array([[1, 3, 2]], np.float32))).numpy())
print(os.environ["POCL_CACHE_DIR"])
backend.close()
"""
    file, temporary = tmp_path / "file", tmp_path / "temporary"
    file.touch()
    temporary.mkdir()
    environment = {"SPORE_KERNEL_CACHE": str(file), "HOME": str(file), "TMPDIR": str(temporary)}
    inherited = {name: value for name, value in os.environ.items() if name != pocl_folder.VARIABLE}
    found = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"[1]\n{temporary}/sporelm-pocl-"), found.stdout
    assert found.stderr.count("OpenCL programs are compiled at every start") == 1, found.stderr
    assert not list(temporary.iterdir())
