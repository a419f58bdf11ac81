"""The examples of the page on Python, run one after the other as the page has them."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = "python.md"


def test_the_examples_of_the_page_on_python_run(root: Path, talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (root / "docs" / PAGE).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) >= 6
    for block in blocks:
        code = block[1].replace('"model.gguf"', repr(str(talker)))
        lines = "\n" * text.count("\n", 0, block.start(1))  # so that a failure names the line of the page
        exec(compile(lines + code, PAGE, "exec"), names)
    assert not names["llm"].is_open
    assert names["vectors"].shape[0] == 2
    said = capsys.readouterr().out
    assert "True" in said, "the event loop's model was healthy"
    assert said.splitlines()[-1].startswith("[{'labels': {'finished_reason': 'stop'}")
