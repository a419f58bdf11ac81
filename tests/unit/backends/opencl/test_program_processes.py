"""The cache of programs between processes, on a driver that keeps a cache of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sporelm.backends.file_cache import ObjectCache

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from sporelm.backends.opencl import pocl_folder
from sporelm.backends.opencl.pocl_folder import FOLDER, LOCK_SUFFIX, remove_abandoned

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
    assert not list((folder / FOLDER).iterdir()), "processes remove their folders"
    assert finish(start(root, folder, opencl.device.number)) == ["0", "None"]


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """A folder whose lock is held stays."""
    held, abandoned = tmp_path / "held", tmp_path / "abandoned"
    for folder in (held, abandoned):
        folder.mkdir()
        (folder / "kernel.so").write_bytes(b"x")
        (tmp_path / f"{folder.name}{LOCK_SUFFIX}").touch()
    with (tmp_path / f"held{LOCK_SUFFIX}").open("rb") as file:
        if not pocl_folder._try_lock(file):
            pytest.skip("this system has no locks of files")
        remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", f"held{LOCK_SUFFIX}"]
