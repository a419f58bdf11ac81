"""The object cache between processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sporelm.backends.file_cache import ObjectCache

PROGRAM = """
import numpy as np
from sporelm import ops
from sporelm.backends.cpu import CpuBackend
backend = CpuBackend(threads=1)
x = backend.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
assert ops.add(x, x).numpy().tolist() == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18, 20, 22]]
assert ops.argmax(x).numpy().tolist() == [3, 3, 3]
backend.close()
print(backend.compiler.compiled, backend.compiler.cache.refusal, len(backend.compiler.cache.entries()))
"""


def start(root: Path, folder: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"SPORE_KERNEL_CACHE": str(folder), "PYTHONPATH": str(root / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return out.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def test_the_second_process_compiles_nothing(root: Path, folder: Path) -> None:
    compiled, refusal, entries = finish(start(root, folder))
    assert int(compiled) == int(entries) > 0
    assert refusal == "None"
    assert finish(start(root, folder)) == ["0", "None", entries]


def test_many_processes_may_compile_at_once(root: Path, folder: Path) -> None:
    processes = [start(root, folder) for _ in range(4)]
    found = [finish(process) for process in processes]
    assert all(refusal == "None" for _, refusal, _ in found)
    cache = ObjectCache(folder)
    names = {path.stem for _, _, path in cache.entries()}
    assert all(cache.get(name) is not None for name in names), "every file is whole"
    assert {path.name for path in folder.iterdir()} == {f"{name}.o" for name in names}, "nothing is left over"
    assert finish(start(root, folder)) == ["0", "None", str(len(names))]
