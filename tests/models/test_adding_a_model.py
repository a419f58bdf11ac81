"""The family that docs/adding-a-model.md builds: its file as it is printed there computes what Qwen3 computes."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from available import opened
from close import assert_close
from families import CASES, write_case
from sporelm.models import registry
from stepping import Stepper


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What a test registers is gone after it, but not families whose files it was the first to import."""
    yield
    for name in [name for name, model in registry._FOUND.items() if model.__module__ == "example"]:
        del registry._FOUND[name]


def test_the_example_runs(root: Path, tmp_path: Path, load: Callable[..., Stepper], forgotten: None) -> None:
    page = (root / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    made: dict[str, Any] = {"__name__": "example"}
    exec(compile(code, "adding-a-model.md", "exec"), made)
    (qwen3,) = (case for case in CASES if case.name == "qwen3")
    example = replace(qwen3, config=qwen3.config | {"architectures": ["ExampleForCausalLM"], "model_type": "example"})
    backend = opened("cpu", threads=1)
    folders = [write_case(tmp_path / case.family.rpartition(".")[2], case) for case in (qwen3, example)]
    runners = [load(folder, backend, context=128, eager=False) for folder in folders]
    wanted, found = (runner.step([(0, qwen3.ids())])["logits"] for runner in runners)
    assert type(runners[1].model) is made["Example"]
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    backend.close()
