"""Windows and macOS, pretended: the package is imported and a model runs without what POSIX or Linux alone has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.processes import environment

SCRIPT = Path(__file__).with_name("pretend_system.py")
FIRST_WORDS = "[313, 598, 303, 1049, 1468, 267, 628, 333]"  # greedy, as on Linux


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_the_default_path_needs_nothing_of_linux(story: Path, tmp_path: Path, system: str) -> None:
    changes = {"HOME": str(tmp_path), "SPORE_KERNEL_CACHE": str(tmp_path / "kernels")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), system, str(story)],
        env=environment(**changes), capture_output=True, text=True, encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"tokens {FIRST_WORDS}"
    assert "kernels are compiled at every start" not in done.stderr


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_the_pretence_hides_what_is_missing(story: Path, system: str) -> None:
    """A module that did need Linux would be found: the script fails where one asks for what was taken away."""
    code = (
        "import os, runpy, sys\n"
        f"there = runpy.run_path({str(SCRIPT)!r})\n"
        f"there['pretend_windows' if {system!r} == 'win32' else 'pretend_macos']()\n"
        "assert not hasattr(os, 'sched_getaffinity')\n"
        f"assert hasattr(os, 'fork') == ({system!r} == 'darwin')\n"
        "import fcntl\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (system == "darwin"), done.stderr
