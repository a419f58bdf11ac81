"""The examples of the page on Python, run one after the other as the page has them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from encoder_files import write_encoder
from families import ENCODERS

PAGE = "python.md"


def test_the_examples_of_the_page_on_python_run(
    root: Path, talker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = {"prompts": {"query": "Once upon a time "}}
    (talker / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")
    encoders = {case.name: case for case in ENCODERS}
    files = {'"model.gguf"': talker}
    for name, kind in (("encoder", "bert"), ("reranker", "bert-scores")):
        files[f'"{name}.gguf"'] = write_encoder(tmp_path / name, encoders[kind])
    text = (root / "docs" / PAGE).read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) >= 6
    for block in blocks:
        code = block[1]
        for name, place in files.items():
            code = code.replace(name, repr(str(place)))
        lines = "\n" * text.count("\n", 0, block.start(1))  # so that a failure names the line of the page
        exec(compile(lines + code, PAGE, "exec"), names)
    assert not names["llm"].is_open
    for name in ("encoder", "reranker"):
        names[name].close()
    assert names["vectors"].shape[0] == 2
    said = capsys.readouterr().out
    assert "True" in said, "the event loop's model was healthy"
    assert said.splitlines()[-1].startswith("[{'labels': {'finished_reason': 'stop'}")
