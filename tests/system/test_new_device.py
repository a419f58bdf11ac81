"""The back-end that docs/new-device.md builds: its package as it is printed there is built, installed and run."""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from system.processes import environment

SECONDS = 900


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(**variables),
    )


def has_setuptools() -> bool:
    """Return whether setuptools can build a wheel by itself. It is not imported: that would replace distutils here."""
    try:
        return tuple(map(int, version("setuptools").split(".")[:2])) >= (70, 1)
    except (PackageNotFoundError, ValueError):
        return False


@pytest.fixture(scope="module", name="installed")
def _installed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package is installed, built from the page's blocks."""
    if not has_setuptools():
        pytest.skip("setuptools 70.1 is not installed")
    page = (root / "docs" / "new-device.md").read_text(encoding="utf-8")
    (project,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    source = tmp_path_factory.mktemp("spore-mydevice")
    (source / "pyproject.toml").write_text(project, "utf-8")
    (source / "spore_mydevice").mkdir()
    (source / "spore_mydevice" / "__init__.py").write_text(module, "utf-8")
    wheels, target = source / "wheels", source / "site"
    flags = ("--no-deps", "--no-index", "--disable-pip-version-check")
    built = run(
        "-m", "pip", "wheel", *flags, "--no-build-isolation", "-w", str(wheels), str(source), PYTHONWARNINGS="ignore"
    )
    assert built.returncode == 0, built.stderr[-2000:]
    (wheel,) = wheels.glob("*.whl")
    installed = run("-m", "pip", "install", *flags, "--target", str(target), str(wheel), PYTHONWARNINGS="ignore")
    assert installed.returncode == 0, installed.stderr[-2000:]
    return target


def doctor(root: Path, installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(
        "-m",
        "sporelm",
        "doctor",
        *words,
        PYTHONPATH=f"{installed}{':' if sys.platform != 'win32' else ';'}{root / 'src'}",
    )


def test_the_installed_back_end_is_found(root: Path, installed: Path) -> None:
    done = doctor(root, installed, "--json")
    assert done.returncode == 0, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)["backends"]["mydevice"]
    assert state["ready"]
    assert state["details"]["device"] == "mydevice"
    assert "linear" not in state["lacks"]
    assert "attention" in state["lacks"]
    wrong = json.loads(doctor(root, installed, "--json", "--device", "cuda").stdout)["backends"]["mydevice"]
    assert "no such device (got 'cuda'; allowed mydevice)" in wrong["reason"]


@pytest.mark.all
def test_its_report_passes(root: Path, installed: Path, tmp_path: Path) -> None:
    target = tmp_path / "mydevice.json"
    done = doctor(root, installed, "--backend", "mydevice", "--conformance", "--report", str(target))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(target.read_text("utf-8"))
    assert report["passes"]
    assert {row["kernel"] for row in report["ops"] if row["op"] in ("linear", "rms_norm", "silu_mul")} == {"own"}
    assert len(report["models"]) == 12
    assert all(row["state"] == "equal" for row in (*report["cases"], *report["models"]))
