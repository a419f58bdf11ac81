"""How many threads a process takes: what was asked for, or the cores that affinity and control groups leave."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sporelm.api.machine import choose_threads, quotas, usable_cores
from sporelm.errors import RequestError


def system(folder: Path, files: Mapping[str, str]) -> Path:
    """A made-up root of a file system."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, []),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, [2]),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, [3]),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/cpu.max": "400000 100000\n",
            },
            [1, 4],
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            [2],
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, []),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, files: Mapping[str, str], expected: list[int]) -> None:
    assert quotas(system(tmp_path, files)) == expected


def test_cores_are_at_least_one_and_at_most_the_quota(tmp_path: Path) -> None:
    root = system(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000 100000\n"})
    assert usable_cores(root) == 1
    assert usable_cores(tmp_path / "nothing") >= 1


def test_what_was_asked_for_counts() -> None:
    assert choose_threads(3) == 3
    for wrong in (0, -1, 5000):
        with pytest.raises(RequestError, match=f"threads is {wrong}: .* 1 to 1024"):
            choose_threads(wrong)
