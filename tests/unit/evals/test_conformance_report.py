"""The report about a back-end: what is in it, and what makes it fail."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.backends.backend_registry import open_backend
from sporelm.cli.main import main
from sporelm.evals.conformance import conformance_report, model_checks
from sporelm.evals.conformance.check import OUT_OF_RANGE
from sporelm.evals.conformance.conformance_report import check_report_path, render_page, summarize_ops, write_report
from sporelm.evals.conformance.model_checks import KINDS, compare_logits, run_model
from sporelm.evals.conformance.op_speed import FORMAT_NAMES, time_products
from sporelm.ops import ALL


class Tags(HTMLParser):
    """The tags that are open, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def make_report(**changes: Any) -> dict[str, Any]:
    cases = [
        {"backend": "x", "case": "add 1x7", "kernel": "own", "state": "equal", "error": "0.0e+00", "seconds": 0.002}
        | {"reference_seconds": 0.004},
        {"backend": "x", "case": "add 2x7", "kernel": "own", "state": "differs", "error": "1.0e-01"},
        {"backend": "x", "case": "rope <half>", "kernel": "own", "state": "fails", "error": "TypeError: <b> & more"},
        {"backend": "x", "case": "store_latent 1", "kernel": "reference", "state": "unsupported", "error": "no kernel"},
        *({"backend": "x", "case": f"add {n}", "kernel": "none", "state": OUT_OF_RANGE, "error": ""} for n in range(3)),
    ]
    report = {
        "backend": "x",
        "passes": False,
        "version": "1",
        "date": "2026-01-01",
        "system": "Linux",
        "details": {"device": "<x>"},
        "missing_kernels": ["rope"],
        "ops": summarize_ops(cases, ["rope"]),
        "cases": cases,
        "models": [{"model": "attention", "storage": "F16", "mode": "eager", "state": "fails", "error": "no"}],
        "speed": [
            {"format": "F16", "rows": 1, "seconds": 1e-3, "bytes_s": 1e9, "ops_s": 1e9, "limit": "stream", "share": 0.5}
        ],
    }
    return report | changes


def test_the_page_is_well_formed_and_says_everything() -> None:
    page = render_page(make_report())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    for words in (
        "does not pass",
        "rope <half>",
        "TypeError: <b> & more",
        "device",
        "<x>",
        "50%",
        "2.00",
        "store_latent (1)",
        "data type: 3.",
    ):
        assert words in tags.text
    assert "<script" not in page
    assert "passes" in render_page(make_report(passes=True))


def test_ops_are_summarized() -> None:
    rows = {row["op"]: row for row in make_report()["ops"]}
    assert rows.keys() == ALL.keys()
    assert rows["add"]["cases"] == 2
    assert rows["add"]["equal"] == 1
    assert rows["add"]["largest_error"] == 0.1
    assert rows["rope"]["kernel"] == "reference"
    assert rows["store_latent"]["cases"] == 0


def test_a_report_is_written_as_its_name_says(tmp_path: Path) -> None:
    report = make_report()
    for name in ("r.json", "r.html"):
        write_report(report, str(tmp_path / name))
    assert json.loads((tmp_path / "r.json").read_text("utf-8")) == report
    assert (tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_report_that_cannot_be_written_is_refused_before_the_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.html").mkdir()
    for name, code, reason in (
        ("r.txt", 2, r"not a kind of report (got '.*r.txt'; allowed .html and .json). Rename it."),
        ("none/r.html", 1, r"no such folder (got '.*none'). Create it first."),
        ("folder.html", 1, r"cannot write '.*folder.html': .*. Name another file."),
    ):
        words = ["doctor", "--conformance", "--backend", "reference", "--report", str(tmp_path / name)]
        assert main(words) == code
        pattern = reason.replace("(", r"\(").replace(")", r"\)")
        assert re.search(pattern, capsys.readouterr().err)
    check_report_path(str(tmp_path / "r.html"))
    assert not (tmp_path / "r.html").exists()


def test_an_unknown_back_end_is_refused_before_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--conformance", "--backend", "abacus", "--report", "r.html"]) == 2
    assert "--backend: no such back-end (got 'abacus'; allowed cpu, reference" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_tiny_model_on_the_cpu_is_that_of_the_reference(kind: str) -> None:
    reference, backend = open_backend("reference"), open_backend("cpu")
    expected, found = (run_model(kind, "F16", each, eager=each is backend) for each in (reference, backend))
    assert compare_logits(found, expected, True)["state"] == "equal"
    assert (
        compare_logits(found + np.float32(0.1) * found.std() * (np.arange(found.shape[1]) % 2), expected, True)["state"]
        == "differs"
    )
    assert compare_logits(np.full_like(found, np.nan), expected, False)["state"] == "differs"
    reference.close()
    backend.close()


def test_products_are_timed_beside_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    from sporelm.evals.conformance import op_speed

    monkeypatch.setattr(op_speed, "SIDE", 256)
    monkeypatch.setattr(op_speed, "STREAM_BYTES", 1 << 18)
    backend = open_backend("cpu")
    rows = list(time_products(backend))
    backend.close()
    assert [(row["format"], row["rows"]) for row in rows] == [
        (name, rows) for name in FORMAT_NAMES for rows in (1, 256)
    ]
    assert all(row["share"] > 0 for row in rows)


def test_the_command_writes_the_report_and_fails_where_a_case_differs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"backend": "cpu", "case": "add 1x7", "kernel": "own", "state": "equal", "error": "0.0e+00"}]
    models = [{"model": "attention", "storage": "F16", "mode": "eager", "state": "equal", "error": ""}]
    monkeypatch.setattr(conformance_report, "check_backends", lambda *args, **options: rows)
    monkeypatch.setattr(conformance_report, "check_models", lambda *args: models)
    monkeypatch.setattr(conformance_report, "time_products", lambda backend: [])
    target = tmp_path / "report.json"
    words = ["doctor", "--conformance", "--backend", "cpu", "--report", str(target)]
    assert main(words) == 0
    assert "cpu passes: 1 of 1 cases and 1 of 1 runs of tiny models are equal" in capsys.readouterr().out
    models[0] = models[0] | {"state": "differs"}
    assert main(words) == 1
    assert json.loads(target.read_text("utf-8"))["passes"] is False
    for wrong in (["doctor", "--report", "r.html"], ["doctor", "--conformance", "--report", "r.html"]):
        assert main(wrong) == 2
    assert model_checks.KINDS == ("attention", "experts", "state space")
