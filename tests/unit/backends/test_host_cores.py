"""The cores that affinity and control groups leave."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from sporelm.backends.host_cores import cgroup_quotas, usable_cores


def system(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files of a synthetic root file system."""
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
    assert cgroup_quotas(system(tmp_path, files)) == expected


def test_cores_are_at_least_one_and_at_most_the_quota(tmp_path: Path) -> None:
    root = system(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000 100000\n"})
    assert usable_cores(root) == 1
    assert usable_cores(tmp_path / "nothing") >= 1
