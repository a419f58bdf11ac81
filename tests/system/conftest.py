"""The fixture that runs `spore`."""

import subprocess
from pathlib import Path

import pytest

from system.processes import SECONDS, Spore, command, environment


@pytest.fixture
def spore(tmp_path: Path) -> Spore:
    """Run `spore WORDS` and return what it printed and its exit code. Keywords go into the environment."""

    def run(*words: object, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        variables = environment(**changes)
        return subprocess.run(
            command(*words), input=stdin, cwd=tmp_path, env=variables, capture_output=True, encoding="utf-8",
            timeout=SECONDS, check=False,
        )  # fmt: skip

    return run
