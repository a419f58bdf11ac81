"""The fixtures that run `spore`, and a model to chat with."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from copied import copied
from system.processes import SECONDS, Spore, command, environment

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '' }}{% endif %}"
)


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
    folder = copied(story, tmp_path / "talker")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"chat_template": TEMPLATE}), encoding="utf-8")
    return folder


@pytest.fixture
def broken(talker: Path) -> Path:
    """The talker with norms so large that its scores are not numbers, though every weight is."""
    from safetensors.numpy import load_file, save_file

    weights = load_file(talker / "model.safetensors")
    changed = {name: array * np.float32(1e37) if "norm" in name else array for name, array in weights.items()}
    save_file(changed, talker / "model.safetensors")
    return talker
