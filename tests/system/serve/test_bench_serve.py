"""`spore bench serve` against our server: every form of output, and what goes wrong, in a line."""

import csv
import io
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sporelm import settings
from sporelm.cli import main
from system.processes import command, environment, one_line
from system.serve.running_server import Running
from system.serve.slow_models import crowded_model

FEW = ("--requests", "3", "-n", "4", "-p", "12", "--warmup", "0")


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore the API key of the machine's user."""
    monkeypatch.setitem(settings.API_KEY.__dict__, "value", "")


def bench(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    code = main.main(["bench", "serve", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_our_server(
    served: Running, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    saved, plot = tmp_path / "rows.csv", tmp_path / "chart.svg"
    words = ("--url", served.url, "-c", "1,3", "--rate", "50", "--endpoint", endpoint, "--json", *FEW)
    monkeypatch.setattr(sys, "argv", ["spore", "bench", "serve", *words, "--api-key", "sesame"])
    code, out, err = bench(capsys, *words, "--save", saved, "--plot", plot, "--seed", "7")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["url"] == f"{served.url}/v1"
    assert (found["model"], found["ignore_eos"], found["notes"], found["stopped"]) == ("story", True, [], False)
    assert [(row["concurrency"], row["rate"]) for row in found["rows"]] == [(1, None), (3, None), (None, 50.0)]
    for row in found["rows"]:
        assert (row["requests"], row["answers"], row["errors"], row["whole"]) == (3, 3, {}, True)
        assert (row["output_tokens"], row["counted_by"]) == (12, "usage")
        assert abs(row["prompt_tokens"] / 3 - 12) <= 4
        assert 0 < row["ttft_ms"]["p50"] < row["e2e_ms"]["p50"]
        assert 0 < row["cpu_client"] < 2
        assert row["output_tok_s"] == row["samples"][0] > 0
    lines = list(csv.DictReader(io.StringIO(saved.read_text())))
    assert [line["output_tokens"] for line in lines] == ["12"] * 3
    assert "sesame" not in saved.read_text()
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert served.engine_idle()


def test_tables(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--url", served.url, "-c", 2, *FEW)
    code, out, _ = bench(capsys, *words)
    assert code == 0
    assert "story at http://127.0.0.1" in out
    assert "tokens counted by usage" in out
    assert "c 2" in out
    assert bench(capsys, *words, "--md")[1].startswith("| load | answers |")
    assert next(csv.reader(io.StringIO(bench(capsys, *words, "--csv")[1])))[:2] == ["url", "model"]


@pytest.mark.parametrize("columns", ["60", "80", "140"])
def test_a_narrow_terminal_gets_every_figure(
    served: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, out, _ = bench(capsys, "--url", served.url, "-c", 2, *FEW)
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert code == 0
    assert "…" not in out
    assert all(name in out for name in ("c 2", "p50", "p90", "p99", "mean"))
    assert max(map(len, out.splitlines())) <= int(columns)


def test_shared_prefixes_are_found_again(served: Running, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--url", served.url, "-c", 1, "--requests", 3, "-n", 2, "-p", 160, "--json")
    cached = [
        json.loads(bench(capsys, *words, "--shared-prefix", share)[1])["rows"][0]["cached_tokens"] for share in (0, 1)
    ]
    assert cached[0] == 0
    assert cached[1] >= 3 * 64


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("--model", "unknown"), "there is no model 'unknown'", 1),
        (("-p", "600", "-c", "1"), "answered HTTP 400", 1),
        (("-c", "0"), "-c is 0", 2),
        (("--rate", "0"), "--rate is 0", 2),
        (("--api-key", "a b"), "the API key has invalid characters", 2),
        (("--plot", "chart.png"), "charts are SVG", 1),
        (("--save", "no/rows.csv"), "its folder does not exist", 1),
    ],
)
def test_mistakes_are_one_line(
    served: Running, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str, code: int
) -> None:
    found = bench(capsys, "--url", served.url, *words)
    assert found[:2] == (code, "")
    assert said in one_line(found[2])


def test_wrong_keys_and_no_server(serve: object, capsys: pytest.CaptureFixture[str]) -> None:
    from sporelm.serve.http.api_keys import ApiKey

    running: Running = serve(keys=(ApiKey.parse("anna:sesame"),))  # type: ignore[operator]
    words = ("--url", running.url, "-c", 1, *FEW)
    code, _, err = bench(capsys, *words, "--json")
    assert (code, "give --api-key" in one_line(err)) == (1, True)
    code, _, err = bench(capsys, *words, "--api-key", "other")
    assert (code, "does not accept this key" in one_line(err)) == (1, True)
    assert bench(capsys, *words, "--api-key", "sesame", "--json")[0] == 0
    with socket.socket() as silent:  # keeps its port for itself and does not listen
        silent.bind(("127.0.0.1", 0))
        code, _, err = bench(capsys, "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert (code, "cannot be reached: Connection refused" in one_line(err)) == (1, True)


def test_a_full_queue_is_told(
    serve: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running: Running = serve(crowded_model(monkeypatch, 8, 30), max_waiting=1)  # type: ignore[operator]
    words = ("--url", running.url, "-c", 8, "--requests", 16, "-n", 30, "-p", 12, "--warmup", 0)
    code, out, err = bench(capsys, *words, "--json")
    row = json.loads(out)["rows"][0]
    assert (code, err) == (0, "")
    assert row["errors"]["HTTP 429"] + row["answers"] == 16
    assert row["answers"] > 0
    assert "HTTP 429" in json.loads(out)["notes"][-1]


def ended(running: Running) -> float:
    """Requests that have ended, as the server counts them."""
    lines = running.client().get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{"))


@pytest.mark.all
def test_ctrl_c_prints_what_was_measured(served: Running) -> None:
    before = ended(served)
    words = ("bench", "serve", "--url", served.url, "-c", 1, "--requests", 5000, "-n", 8, "-p", 12, "--json")
    with subprocess.Popen(
        command(*words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while ended(served) < before + 40:
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    found = json.loads(out)
    assert found["stopped"]
    assert 0 < found["rows"][0]["answers"] < 5000
    assert not found["rows"][0]["whole"]
    assert "stopped" in one_line(err)
