"""Torch that does not load, such as for a vendor's plug-in: the other back-ends work, and the reason is named."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from available import open_available
from sporelm.backends import torch_detection
from sporelm.backends.torch_detection import list_torch_devices, load_torch
from sporelm.errors import BackendError

REASON = (
    "torch does not load with its plug-in torch_npu (ImportError: libascendcl.so: no such file). Repair or uninstall"
    " the plug-in, or set the environment variable TORCH_DEVICE_BACKEND_AUTOLOAD to 0"
)


def test_a_plug_in_that_does_not_load_is_named() -> None:
    open_available("torch").close()
    from sporelm.backends.torch import explain_torch_failure

    error = RuntimeError("Failed to load the backend extension: torch_npu. You can disable extension auto-loading")
    error.__cause__ = ImportError("libascendcl.so:\nno such file")
    assert explain_torch_failure(error) == REASON


def test_torch_that_does_not_load_by_itself_is_named() -> None:
    open_available("torch").close()
    from sporelm.backends.torch import REMEDY, explain_torch_failure

    reason = explain_torch_failure(OSError("libgomp.so: cannot open"))
    assert reason == f"torch is installed but does not load (OSError: libgomp.so: cannot open); reinstall it: {REMEDY}"


def test_torch_is_imported_once_if_it_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second import would fail for another reason."""
    imported: list[str] = []

    def refuse(name: str) -> Any:
        imported.append(name)
        raise BackendError("no torch") from RuntimeError("broken")

    monkeypatch.setattr(torch_detection, "import_module", refuse)
    monkeypatch.setattr(torch_detection, "_failures", [])
    monkeypatch.setattr(torch_detection, "can_have_devices", lambda: True)
    for _ in range(2):
        with pytest.raises(BackendError, match="no torch"):
            load_torch()
    assert list_torch_devices() == []
    assert len(imported) == 1


def test_each_back_end_says_that_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise BackendError("not installed")

    monkeypatch.setattr(torch_detection, "import_module", refuse)
    monkeypatch.setattr(torch_detection, "_failures", [])
    load_torch()
    assert not torch_detection._failures


@pytest.mark.all
def test_other_back_ends_work_beside_a_broken_plug_in(root: Path, tmp_path: Path) -> None:
    open_available("torch").close()
    folder = tmp_path / "torch_npu-2.13.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")
    (folder / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libascendcl.so: no such file')\n")
    paths = os.pathsep.join(map(str, (tmp_path, root / "src")))
    environment = {**os.environ, "PYTHONPATH": paths, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    words = [sys.executable, "-m", "sporelm", "doctor"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "--backend auto picks cpu" in done.stdout
    for name in ("torch", "cuda", "ascend"):
        assert f"{name:<13}missing: {REASON}" in done.stdout
