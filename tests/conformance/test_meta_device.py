"""`spore doctor --device meta` runs the shapes of every bucket, and reports a program that reads a value."""

import json
from typing import Any

import pytest

from available import open_available
from sporelm.cli.main import main
from sporelm.evals.meta_device import check_buckets as check_module
from sporelm.evals.meta_device.check_buckets import check_buckets, fill_buckets
from sporelm.evals.meta_device.tiny_configs import CONFIGS

META = {"device": "meta"}
PADDED = {"attention", "window and softcap", "sinks", "linear biases", "experts", "latent attention"}


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_is_legal(kind: str) -> None:
    open_available("torch").close()
    (row,) = check_buckets("torch", META, [kind], every=50)
    assert (row["state"], row["error"]) == ("legal", "")
    assert (row["padded"] > 0) == (kind in PADDED)
    assert row["exact"] > 0


def test_narrow_numbers_are_legal() -> None:
    open_available("torch").close()
    (row,) = check_buckets("torch", META | {"dtype": "f16"}, ["experts"], every=50)
    assert row["state"] == "legal", row


def test_a_read_of_the_device_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    open_available("torch").close()
    from sporelm.backends.torch import TorchBackend

    add = TorchBackend.functions["add"]

    def reading(left: Any, right: Any) -> Any:
        return add(left, right) if left.sum().item() else left

    monkeypatch.setattr(TorchBackend, "functions", {**TorchBackend.functions, "add": reading})
    monkeypatch.setattr(TorchBackend, "rules", ())
    (row,) = check_buckets("torch", META, ["attention"], every=50)
    assert (row["state"], row["padded"], row["exact"]) == ("fails", 0, 0)
    assert row["error"].startswith("F32, f32, after no step: ")
    assert "meta" in row["error"]


def test_a_step_fills_its_buckets() -> None:
    step = fill_buckets(decodes=3, blocks=2, row_block=16, columns=4, outputs=20)
    assert [len(each.tokens) for each in step.sequences] == [1, 1, 1, 32]
    assert [each.num_outputs for each in step.sequences] == [1, 1, 1, 17]
    assert {each.position + len(each.tokens) for each in step.sequences} == {4 * 64}


def test_doctor_prints_a_line_for_each_kind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"kind": "attention", "architecture": "llama", "padded": 9, "exact": 4, "state": "legal", "error": ""},
        {"kind": "encoder", "architecture": "bert", "padded": 0, "exact": 1, "state": "fails", "error": "a reason"},
    ]
    calls: list[Any] = []

    def check(name: str, options: Any, every: int) -> Any:
        calls.append((name, options, every))
        return rows[: len(calls)]

    monkeypatch.setattr(check_module, "check_buckets", check)
    assert main(["doctor", "--device", "meta"]) == 0
    assert "\nshapes       attention (llama): legal, 9 padded and 4 exact steps\n" in capsys.readouterr().out
    assert main(["doctor", "--device", "meta", "--backend", "torch", "--all", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["shapes"] == rows
    assert calls == [("torch", META, 4), ("torch", META, 1)]
    assert main(["doctor", "--device", "meta", "--dtype", "bf16"]) == 1
    assert calls[2:] == [("torch", META | {"dtype": "bf16"}, 4)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "meta", "--conformance"], "has shapes and no values to compare"),
        (["--device", "meta", "--backend", "cpu"], "--backend cpu has no device 'meta'"),
        (["--all"], "--conformance is not given. Give it too."),
    ],
)
def test_doctor_refuses(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *words]) == 2
    assert message in capsys.readouterr().err
