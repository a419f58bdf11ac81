"""Available memory, read from synthetic /proc and /sys trees, and the release of file pages."""

import os
from pathlib import Path

import numpy as np
import pytest

from sporelm.backends.memory_residency import available_bytes, available_on, drop_pages, physical_bytes
from sporelm.backends.reference import ReferenceBackend
from sporelm.files.memory_map import byte_array, map_file

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"


def tree(root: Path, **files: str) -> Path:
    """Files by their path with `__` for each slash and `DOT` for each dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


class OwnMemory(ReferenceBackend):
    """A device with 1000 bytes left."""

    def free_bytes(self) -> int:
        return 1000


def test_memory_of_a_device_counts_where_it_has_its_own() -> None:
    assert available_on(OwnMemory()) == 1000
    assert (available_on(ReferenceBackend()) is None) == (available_bytes() is None)


def test_machine_alone(tmp_path: Path) -> None:
    assert available_bytes(tree(tmp_path, proc__meminfo=MEMINFO)) == 8_000_000 * 1024
    assert physical_bytes(tmp_path) == 16_000_000 * 1024


def test_control_group_2(tmp_path: Path) -> None:
    """The tightest group of all above counts; file pages that can be dropped are not used up."""
    root = tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/outer/inner\n",
        sys__fs__cgroup__outer__inner__memoryDOTmax="max\n",
        sys__fs__cgroup__outer__memoryDOTmax="1000000\n",
        sys__fs__cgroup__outer__memoryDOTcurrent="700000\n",
        sys__fs__cgroup__outer__memoryDOTstat="anon 500000\ninactive_file 100000\n",
    )
    (root / "sys/fs/cgroup/outer/inner/memory.current").write_text("600000\n")
    assert available_bytes(root) == 400_000


def test_control_group_1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="5:cpuset:/\n4:memory:/not/here\n0::/\n",
        sys__fs__cgroup__memory__memoryDOTlimit_in_bytes="2000000\n",
        sys__fs__cgroup__memory__memoryDOTusage_in_bytes="500000\n",
        sys__fs__cgroup__memory__memoryDOTstat="total_inactive_file 200000\n",
    )
    assert available_bytes(root) == 1_700_000


def test_never_below_nothing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memoryDOTmax="100\n",
        sys__fs__cgroup__memoryDOTcurrent="300\n",
    )
    assert available_bytes(root) == 0


def test_without_any_of_them_there_is_an_answer_or_none(tmp_path: Path) -> None:
    found = available_bytes(tmp_path)
    assert found is None or found > 1 << 20


def test_this_machine() -> None:
    found = available_bytes()
    assert found is None or found > 1 << 20


def resident() -> int:
    """Bytes of this process in memory that are backed by files."""
    statistics = Path("/proc/self/statm")
    if not statistics.exists():
        pytest.skip("no /proc/self/statm to count pages with")
    return int(statistics.read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def test_dropped_pages_leave_the_process_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "data"
    values = np.arange(1 << 22, dtype=np.uint32)
    path.write_bytes(values.tobytes())
    view = byte_array(map_file(path), 5, values.nbytes - 9)
    total = int(view.sum(dtype=np.int64))
    before = resident()
    drop_pages(view)
    assert before - resident() > 12_000_000
    assert int(view.sum(dtype=np.int64)) == total


def test_ordinary_memory_is_left_alone() -> None:
    array = np.ones(1 << 16, np.uint8)
    drop_pages(array)
    drop_pages(np.frombuffer(b"bytes", np.uint8))
    assert array.all()
