"""The examples of the pages run."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(examples()) == 3


@pytest.mark.parametrize("example", examples(), ids=range(len(examples())))
def test_an_example_runs(story: Path, example: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(example.replace('"model.gguf"', repr(str(story))), names)
    if "llm" in names:
        names["llm"].close()
    assert capsys.readouterr().out.strip()
