"""The scripts of bench/gpu: they run to their ends without a GPU, and without what an installation would bring."""

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "bench" / "gpu"
SCRIPTS = ("limits", "conformance", "linear", "attention", "model", "compare_transformers", "all")
HELPERS = ("harness", "random_models")
LIMITS = {"read_bytes_s": 1e9, "copy_bytes_s": 1e9, "bf16_flops": 1e9, "fp8_flops": 0.0, "launch_s": 1e-5}
LIMITS |= {"graph_kernel_s": 0.0}


@pytest.fixture(autouse=True)
def without_interpreter() -> None:
    """The scripts turn it on by themselves."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from sporelm.backends.cuda.numbers import IS_INTERPRETED

    if IS_INTERPRETED:
        pytest.skip("runs once, without TRITON_INTERPRET=1")


def run_script(name: str, folder: Path, *words: str, with_limits: bool = True) -> tuple[dict[str, Any], str]:
    """Run a script on the CPU under the import guard. Return its JSON, and its other output."""
    given = ["--device", "cpu", "--tiny", "--repeat", "1", "--json"]
    if with_limits:
        (folder / "limits.json").write_text(json.dumps(LIMITS))
        given += ["--limits", str(folder / "limits.json")]
    guard = Path(__file__).with_name("import_guard.py")
    done = subprocess.run(
        [sys.executable, guard, FOLDER / f"{name}.py", *given, *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    assert not [row for row in found["rows"] if "error" in row]
    return found, done.stderr


def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "written.json"
    found, errors = run_script("limits", tmp_path, "--write", str(path), with_limits=False)
    assert [row["name"] for row in found["rows"]] == ["read", "copy", "matmul bf16 64", "matmul fp8 64", "launch"]
    assert json.loads(path.read_text()).keys() == LIMITS.keys()
    assert "hidden: nothing" in errors


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.all)])
def test_conformance(tmp_path: Path, jobs: int) -> None:
    words = ("--dtypes", "f32", "--jobs", str(jobs), "--max-cases", str(4 // jobs), "--ops", "rms_norm,add")
    found, errors = run_script("conformance", tmp_path, *words, "--only", "cases")
    last = found["rows"][-1]
    assert (last["name"], last["cases"], last["equal"], last["of"]) == ("f32 all ops", 4, 4, 12)
    assert "hidden: nothing" in errors


@pytest.mark.all
def test_products(tmp_path: Path) -> None:
    words = ("--products", "qkv,gate_up", "--formats", "bf16,q4_0", "--rows", "1")
    found, errors = run_script("linear", tmp_path, *words)
    assert all(row["share"] > 0 and row["ratio"] > 0 for row in found["rows"] if row["name"].endswith("rows 1"))
    assert len(found["rows"]) == 8
    assert "hidden: nothing" in errors


@pytest.mark.all
def test_attention(tmp_path: Path) -> None:
    found, errors = run_script("attention", tmp_path, "--kv", "fp8")
    names = ["decode fp8 context 70 batch 1", "decode fp8 context 70 batch 2", "prompt fp8 tokens 128"]
    assert [row["name"] for row in found["rows"]] == names
    assert "hidden: nothing" in errors


@pytest.mark.all
def test_models(tmp_path: Path) -> None:
    words = ("--models", "mini", "--formats", "bf16", "--figures", "load,decode,idle")
    found, errors = run_script("model", tmp_path, *words)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["mini bf16 decode"]["tok/s"] > 0
    assert rows["mini bf16 idle, 1 streams"]["skipped"] == "there is no GPU"
    assert "hidden: nothing" in errors


@pytest.mark.all
@pytest.mark.parametrize(("model", "number_format"), [("mini", "q4_0"), ("mini", "fp8"), ("mini-moe", "bf16")])
def test_all_figures_of_models(tmp_path: Path, model: str, number_format: str) -> None:
    found, _ = run_script("model", tmp_path, "--models", model, "--formats", number_format)
    assert len(found["rows"]) == 7


@pytest.mark.all
def test_tokens_of_models(tmp_path: Path) -> None:
    found, _ = run_script("conformance", tmp_path, "--only", "tokens")
    assert [row["equal"] for row in found["rows"]] == [3, 3]


def test_a_peer_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    found, _ = run_script("compare_transformers", tmp_path)
    assert "pip install transformers" in found["rows"][0]["skipped"]


def test_parts_that_fail_become_rows(tmp_path: Path, modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = modules("all")
    args = modules("harness").make_parser("").parse_args(["--device", "cpu"])
    args.minutes = 5.0
    runner = everything.Runner(args, tmp_path)
    runner.run(everything.BenchPart("gone", "no_such_script", "", 60))
    runner.deadline = 0.0
    runner.run(everything.BenchPart("late", "limits", "", 60))
    assert "No such file" in runner.rows[0]["error"]
    assert runner.rows[1]["skipped"] == "the time is over"
    text = everything.render_markdown({"card": "none"}, everything.judge_bars(runner.rows), runner.rows)
    assert "| late | the time is over |" in text


@pytest.fixture
def modules() -> Iterator[Any]:
    """Imports the scripts as modules; their names are forgotten afterwards."""
    names = {*SCRIPTS, *HELPERS}
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
    for name in names:
        sys.modules.pop(name, None)


def test_bars_are_ratios_and_bounds(modules: Any) -> None:
    rows = [
        {"name": "8b bf16 decode", "tok/s": 100.0, "share": 0.9},
        {"name": "8b q4_0 decode", "tok/s": 230.0, "share": 0.5},
        {"name": "8b bf16 load", "s": 12.0},
    ]
    judged = {bar["bar"]: (bar["found"], bar["reached"]) for bar in modules("all").judge_bars(rows)}
    assert judged["8B bf16 decode, share of read bandwidth"] == (0.9, True)
    assert judged["8B Q4_0 decode / bf16"] == (2.3, False)
    assert judged["load and capture, seconds"] == (12.0, True)
    assert judged["8B Q4_K decode / bf16"] == (None, None)


def test_idle_time_is_that_between_kernels(modules: Any) -> None:
    def event(begin: float, length: float, correlation: int, kind: str = "kernel") -> dict[str, Any]:
        return {"cat": kind, "ts": begin, "dur": length, "args": {"correlation": correlation}}

    events = [event(0, 40, 1), event(30, 20, 1), event(55, 25, 1), event(90, 10, 2, "gpu_memcpy")]
    events.append({"cat": "cuda_runtime", "ts": 0, "dur": 100})
    found = modules("model").idle_shares(events)
    assert found["share"] == pytest.approx(0.15)  # 50 to 55 within a graph, 80 to 90 between two
    assert found["between share"] == pytest.approx(0.10)


class FakeGraph:
    """Counts replays in place of a CUDA graph."""

    replays = 0

    def replay(self) -> None:
        FakeGraph.replays += 1


class FakeEvent:
    """A device that needs one millisecond for each replay."""

    def __init__(self, enable_timing: bool) -> None:
        self.replays = 0

    def record(self) -> None:
        self.replays = FakeGraph.replays

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "FakeEvent") -> float:
        return float(end.replays - self.replays)


def test_work_is_timed_in_graphs(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    import torch

    harness = modules("harness")
    calls = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    timer = harness.Timer("cuda", 3)
    seconds = timer.time([lambda: calls.append(1), lambda: calls.append(2)])
    assert seconds == pytest.approx(0.0005)
    assert calls == [1, 2] * 3  # twice to warm up, once captured
    assert timer.was_captured
    assert 3 * 20 <= FakeGraph.replays <= 80


@pytest.mark.parametrize("name", [*SCRIPTS, *HELPERS])
def test_the_page_names_each_script(name: str) -> None:
    assert name in HELPERS or f"`{name}.py`" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert (FOLDER / f"{name}.py").is_file()
