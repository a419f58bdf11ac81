"""`spore doctor --models`: which families run, and what vouches for each."""

import json

import pytest

from sporelm.cli.main import main
from sporelm.models.families import FAMILIES


def test_families_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["families"]
    assert [row["family"] for row in rows] == [each.module for each in FAMILIES]
    (llama,) = (row for row in rows if row["family"] == "llama")
    assert llama["names"][:2] == ["llama", "LlamaForCausalLM"]
    assert main(["doctor", "--models"]) == 0
    shown = capsys.readouterr().out
    assert "llama        Llama 1 to 3, Mistral, Mixtral, SmolLM2, TinyStories, Minueza: compared with " in shown


def test_the_list_and_the_comparison_are_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--conformance"]) == 2
    assert "give one of them" in capsys.readouterr().err
