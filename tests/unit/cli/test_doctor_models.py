"""`spore doctor --models`: which families run, and what each is verified against."""

import json
from pathlib import Path

import pytest

from sporelm.checkpoints.supported_models import MODELS
from sporelm.checkpoints.towers.supported_towers import IMAGE_ENCODERS, TOWERS
from sporelm.cli.main import main


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["families"]
    assert [row["family"] for row in rows] == [each.module for each in MODELS]
    (llama,) = (row for row in rows if row["family"] == "llama")
    assert llama["names"][:2] == ["llama", "LlamaForCausalLM"]
    assert main(["doctor", "--models"]) == 0
    shown, _, _ = capsys.readouterr().out.partition("\nmodels that see:")
    (line,) = (line for line in shown.splitlines() if line.startswith("llama "))
    verified_against = llama["vouched"]  # old name: a key of the JSON output
    assert line.split(" ", 1)[1].strip() == f"{llama['models']}: compared with {' and '.join(verified_against)}"
    assert len({len(line) - len(line.lstrip()) for line in shown.splitlines()[1::2]}) == 1


def test_the_list_and_the_comparison_are_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--conformance"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_models_that_see_are_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["vision"]
    assert [row["family"] for row in rows] == [each.module for each in (*TOWERS, *IMAGE_ENCODERS)]
    page = (root / "docs" / "models.md").read_text(encoding="utf-8")
    for each in (*TOWERS, *IMAGE_ENCODERS):
        classes, projectors = (", ".join(f"`{name}`" for name in names) for names in (each.classes, each.projectors))
        row = f"| {each.title} | {classes} | {projectors} | {', '.join(each.verified_against)} |"
        assert row in page, row
