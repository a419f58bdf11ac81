"""The fixtures that run `spore`, and a model to chat with."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from chat_folders import write_chat_folder
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


@pytest.fixture
def talker(story: Path, tmp_path: Path) -> Path:
    """The story model with a chat template that puts the messages in a row."""
    return write_chat_folder(story, tmp_path / "talker")


@pytest.fixture
def broken(talker: Path) -> Path:
    """The talker with norms so large that its scores are not numbers, though every weight is."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(talker / "model.safetensors")
    changed = {name: array * np.float32(1e37) if "norm" in name else array for name, array in weights.items()}
    save_file(changed, talker / "model.safetensors")
    return talker
