"""--lora of `spore run`, `spore eval` and `spore bench`."""

import json
from pathlib import Path
from typing import Any

import pytest

from hf_folders import write_model
from lora_files import random_pairs, write_gguf_adapter, write_peft
from sporelm import LoraAdapter
from sporelm.cli.main import main
from sporelm.engine import Request
from sporelm.errors import RequestError
from system.processes import Spore
from tiny_models import WIDE


def test_a_run_uses_the_first_adapter(spore: Spore, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", WIDE)
    pairs = random_pairs(WIDE, 2)
    write_peft(tmp_path / "strong", pairs, 4.0)
    write_gguf_adapter(tmp_path / "strong.gguf", WIDE, pairs, 4.0)

    def ids(*options: object) -> Any:
        done = spore("run", model, "-p", "abcabc", "-n", 6, "--temp", 0, "--ignore-eos", "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["token_ids"]

    strong = ids("--lora", "strong", "--lora", "other=strong@0.1")
    assert strong == ids("--lora", "mine=strong.gguf") != ids()


def test_a_text_is_scored_with_the_first_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sporelm.evals.scoring_windows.WINDOW", 32)
    monkeypatch.setattr("sporelm.evals.scoring_windows.FIRST_SCORED", 16)
    model = write_model(tmp_path / "model", WIDE)
    pairs = random_pairs(WIDE, 2)
    write_peft(tmp_path / "strong", pairs, 4.0)
    text = tmp_path / "text"
    text.write_text("abcabcab" * 12)

    def figures(metric: str, *options: str) -> Any:
        words = [
            "eval",
            metric,
            str(model),
            str(text),
            "--max-tokens",
            "64",
            "--json",
            "--backend",
            "reference",
            *options,
        ]
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)

    strong = ("--lora", str(tmp_path / "strong"))
    assert figures("ppl", *strong)["nll"] != figures("ppl")["nll"]
    both = figures("kl", *strong)
    assert both["reference_perplexity"] == pytest.approx(figures("ppl", *strong)["perplexity"], rel=1e-4)
    assert both["kl"] < 1e-6, "the weights are not rounded, so only an adapter in one of them would tell them apart"


def test_speed_is_measured_with_the_first_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_model(tmp_path / "model", WIDE)
    write_peft(tmp_path / "strong", random_pairs(WIDE, 2), 4.0)
    asked: set[int] = set()
    made = Request.__init__

    def noted(self: Request, *given: Any, **more: Any) -> None:
        asked.add(more["adapter_id"])
        made(self, *given, **more)

    monkeypatch.setattr(Request, "__init__", noted)
    words = [
        "bench", str(model), "-p", "4", "-n", "3", "-b", "1,2", "--whole", "--repeat", "1", "--json",
        "--backend", "reference",
    ]  # fmt: skip
    monkeypatch.setattr("sporelm.bench.driver.BATCH_TOKENS", 2)
    monkeypatch.setattr("sporelm.bench.driver.BATCH_PROMPT", 3)
    assert main([*words, "--lora", str(tmp_path / "strong")]) == 0
    assert [row["test"] for row in json.loads(capsys.readouterr().out)] == ["pp4", "tg3", "tg2", "pp3+tg2", "pp3+tg2"]
    assert asked == {1}
    assert main([*words, "--lora", str(tmp_path / "strong"), "--peer", "nowhere"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_what_cannot_be_loaded_is_one_line(spore: Spore, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", WIDE)
    for option, code, message in (
        ("nowhere", 1, "nowhere does not exist"),
        ("a=b@much", 2, "--lora: adapter 'b@much': the scale after @ is not a number (got 'much')"),
        ("x=", 2, "spore: --lora: the path of an adapter is ''"),
        ("x=b@c", 2, "spore: --lora: adapter 'b@c': the scale after @ is not a number"),
        ("=b", 2, "--lora: name is ''"),
        ("~no-such-user/x", 2, "no such home folder"),
    ):
        done = spore("run", model, "-p", "x", "--lora", option)
        assert done.returncode == code
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_names_paths_and_scales_are_told_apart(tmp_path: Path) -> None:
    odd = tmp_path / "a=b@2"
    odd.mkdir()
    for text, expected in (
        ("adapter", ("adapter", None, 1.0)),
        ("poet=adapter", ("adapter", "poet", 1.0)),
        ("adapter@0.5", ("adapter", None, 0.5)),
        ("poet=dir/adapter@-2", ("dir/adapter", "poet", -2.0)),
        (str(odd), (str(odd), None, 1.0)),
        (f"odd={odd}", (str(odd), "odd", 1.0)),
        (f"odd={odd}@3", (str(odd), "odd", 3.0)),
    ):
        found = LoraAdapter.parse(text)
        assert (found.path, found.name, found.scale) == expected, text
    with pytest.raises(RequestError, match=r"adapter 'adapter@half': the scale after @ is not a number \(got 'half'\)"):
        LoraAdapter.parse("adapter@half")
