"""`spore tokenize`, `eval` and `embed` without MODEL use the default one, wherever their options stand."""

import json
from pathlib import Path

import pytest

from copied import copied
from sporelm import settings
from sporelm.cli.main import main

MODEL = "smollm2"  # the default


@pytest.fixture(autouse=True)
def store(story: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in which the default model is the story model."""
    folder = tmp_path / "store"
    folder.mkdir()
    copied(story, folder / MODEL)
    monkeypatch.setenv("SPORE_MODEL_STORE", str(folder))  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "MODEL_STORE", settings.Setting("SPORE_MODEL_STORE", lambda: "", ""))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("The dog\nThe cat\n")
    (tmp_path / "long.txt").write_text("Once upon a time there was a dog. " * 300)
    return folder


def output(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("The dog", "--json"),
        ("--json", "The dog"),
        (MODEL, "The dog", "--json"),
        (MODEL, "--json", "The dog"),
        ("--json", MODEL, "The dog"),
        ("--json", "--", "The dog"),
    ],
    ids=" ".join,
)
def test_tokenize(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    found = json.loads(output(capsys, "tokenize", *words))
    assert "".join(found["pieces"]).endswith("The dog")


@pytest.mark.parametrize(
    "words",
    [
        ("long.txt", "--json"),
        (MODEL, "long.txt", "--json"),
        ("--json", MODEL, "--max-tokens", "600", "long.txt"),
    ],
    ids=" ".join,
)
def test_eval(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert json.loads(output(capsys, "eval", "ppl", *words, "--threads", "1"))["perplexity"] > 1


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("The dog",), 1),
        (("-f", "lines.txt"), 2),
        ((MODEL, "The dog"), 1),
        ((MODEL, "The dog", "The cat"), 2),
        ((MODEL, "-f", "lines.txt"), 2),
        ((MODEL, "-f", "lines.txt", "The cow"), 3),
    ],
)
def test_embed(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], count: int) -> None:
    found = json.loads(output(capsys, "embed", *words, "--json", "--threads", "1"))
    assert len(found["vectors"]) == count


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("tokenize", MODEL), f"TEXT is missing: '{MODEL}' is a model; give MODEL and TEXT"),
        (("tokenize", f"store/{MODEL}"), "TEXT is missing"),
        (("eval", "ppl", MODEL), "FILE is missing"),
        (("embed", MODEL), "TEXT is missing"),
    ],
)
def test_a_model_alone_is_not_taken_for_the_text(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], missing: str
) -> None:
    assert main([*words]) == 2
    assert missing in capsys.readouterr().err


def test_a_text_that_cannot_be_a_path_is_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(output(capsys, "tokenize", "a" * 5000, "--json"))["ids"]


def test_a_folder_without_a_model_is_called_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["run", "empty", "-p", "x"]) == 1
    told = capsys.readouterr().err
    assert "no model 'empty': the folder of this name has no config.json" in told
    assert "give './empty'" in told


def test_positions_count_in_the_users_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", "Once \udcff"]) == 1
    assert "the text contains the byte 0xFF at position 5, which is not UTF-8" in capsys.readouterr().err
