"""`spore doctor` refuses a device that no back-end knows, and with `--conformance` one that cannot be checked."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sporelm.backends.backend_registry import DEVICE_KINDS
from sporelm.cli import doctor
from sporelm.cli.main import main
from sporelm.evals.conformance.check import OUT_OF_RANGE


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--device", "cuda:99"], r"no back-end can run on device 'cuda:99' \(torch: .*"),
        (
            ["--backend", "cpu", "--device", "cuda:99"],
            r"back-end 'cpu': no such device \(got 'cuda:99'; allowed cpu\)\. Leave out --device\.",
        ),
        (
            ["--backend", "reference", "--dtype", "bf16"],
            r"back-end 'reference': no such dtype \(got 'bf16'; allowed auto, f32\)\. Leave out --dtype\.",
        ),
    ],
)
def test_a_check_that_would_leave_out_the_device_is_an_error(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--conformance", *options]) == 1
    found = capsys.readouterr()
    assert not found.out
    assert re.fullmatch(f"spore: {problem}\n", found.err)


@pytest.mark.parametrize("device", ["nonsense", "cuda:x", "cuda:", "", "cud"])
def test_an_unknown_device_is_wrong_usage(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", device]) == 2
    found = capsys.readouterr()
    assert not found.out
    allowed = (
        f"allowed {', '.join(DEVICE_KINDS)}, with a number as in cuda:1; for opencl a device that 'spore doctor' lists"
    )
    assert found.err == f"spore: --device: no such device (got {device!r}; {allowed}). Correct the name.\n"


@pytest.mark.parametrize("device", ["CPU", "cpu:0", "CUDA:99"])
def test_known_devices_are_shown_present_or_not(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--device", device]) == 0
    torch = json.loads(capsys.readouterr().out)["backends"]["torch"]
    assert torch["ready"] or "cuda:99" in torch["reason"] or "not installed" in torch["reason"]


def test_numa_nodes_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, cores in enumerate(("0-3,8", "4-7")):
        folder = tmp_path / "sys/devices/system/node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores)
        (folder / "meminfo").write_text(f"Node {number} MemTotal: {number * 2000000} kB\n")
    expected = [
        {"node": 0, "cores": "0-3,8", "memory_bytes": 0},
        {"node": 1, "cores": "4-7", "memory_bytes": 2048000000},
    ]
    assert doctor.list_numa_nodes(tmp_path) == expected
    monkeypatch.setattr(doctor, "list_numa_nodes", lambda: expected)
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["numa"] == expected
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "numa         node 0: cores 0-3,8" in lines
    assert "numa         node 1: cores 4-7, 2.0 GB" in lines


def test_unsupported_cases_are_one_line_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"backend": "x", "kernel": "own", "error": "0.0e+00"}
    lacking = {"backend": "x", "kernel": "reference", "state": "unsupported", "error": "x has no kernel for it"}
    rows = [row | {"case": "add 1x7", "state": "equal"}]
    rows += [lacking | {"case": f"store_latent {number}"} for number in range(3)] + [lacking | {"case": "wkv6 1"}]
    monkeypatch.setattr("sporelm.evals.conformance.check.check_backends", lambda *args, **options: rows)
    assert main(["doctor", "--conformance", "--backend", "cpu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "x: 1 of 1 supported cases are equal" in shown
    assert "x: 4 cases are unsupported" in shown
    assert "store_latent (3), wkv6 (1)" in shown
    assert "has no kernel for it" not in shown
    assert "beyond its number type" not in shown
    rows += [row | {"case": f"linear any block {number}", "state": OUT_OF_RANGE} for number in range(2)]
    assert main(["doctor", "--conformance", "--backend", "cpu"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "x: 1 of 1 supported cases are equal" in shown
    assert "x: 2 cases were skipped: values out of range for its data type" in shown
    assert "any block" not in shown
    rows.append(row | {"case": "add 2x7", "state": "differs"})
    assert main(["doctor", "--conformance", "--backend", "cpu"]) == 1
    assert "x: 1 of 2 supported cases are equal" in " ".join(capsys.readouterr().out.split())


def test_one_back_end_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "reference", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["backends"]) == ["reference"]
    assert main(["doctor", "--backend", "opnecl"]) == 2
    assert capsys.readouterr().err.startswith("spore: --backend: no such back-end (got 'opnecl'; allowed cpu, ")


def test_a_missing_back_end_is_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    state = {"x": {"ready": False, "reason": "back-end 'x' cannot run here: no such device"}}
    monkeypatch.setattr(doctor, "probe_backends", lambda *args: state)
    assert main(["doctor"]) == 0
    assert "x            missing: no such device\n" in capsys.readouterr().out


def test_torch_backends_name_the_install_command_when_torch_is_missing() -> None:
    code = """
import sys
sys.modules["torch"] = None
from sporelm.backends.backend_registry import TORCH_BACKENDS
from sporelm.cli.doctor import probe_backends
for name in TORCH_BACKENDS:
    print(probe_backends({}, name)[name]["reason"])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = found.stdout.splitlines()
    assert len(lines) > 2
    assert all(line.startswith("torch is not installed: pip install ") for line in lines), lines
