"""Pictures in prompts against llama.cpp's libmtmd, from the same two GGUF files; where SPORE_PEER names its folder."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mtmd_models import CASES

pytestmark = pytest.mark.all
MAX_DEVIATION = {"f16": 1e-2, "f32": 2e-3}  # of a row, over the range; GELU is a table of 16-bit floats in llama.cpp


@pytest.fixture(scope="module")
def vision_peer(root: Path) -> Any:
    """The script bench/vision_peer.py."""
    pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install 'sporelm[live]'")
    sys.path.insert(0, str(root / "bench"))
    try:
        return import_module("vision_peer")
    finally:
        sys.path.remove(str(root / "bench"))


@pytest.fixture(scope="module")
def peer() -> Path:
    place = os.environ.get("SPORE_PEER")
    if place is None or not Path(place, "mtmd-driver").is_file():
        pytest.skip("SPORE_PEER names no folder with libmtmd: bench/peer.sh --mtmd builds it")
    return Path(place)


@pytest.mark.parametrize("type_name", ["f16", "f32"])
@pytest.mark.parametrize("name", CASES)
def test_rows_and_distributions(name: str, type_name: str, vision_peer: Any, peer: Path, tmp_path: Path) -> None:
    case = CASES[name]
    result = vision_peer.run_case(case, peer, tmp_path, type_name, with_mistake=bool(case.mistake))
    assert result.exact.rows < MAX_DEVIATION[type_name]
    if not case.is_rows_only:
        assert result.is_close
        assert result.other > vision_peer.MAX_KL


def test_speeds(root: Path, peer: Path) -> None:
    command = [sys.executable, str(root / "bench" / "vision_speed.py"), str(peer), "--shape", "tiny", "--repeat", "2"]
    ran = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120, check=True)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [row["type"] for row in rows] == ["f16", "q8_0"]
    for row in rows:
        assert row["rows"] == 16
        assert min(row["ours_s"], row["llama_cpp_s"], row["llama_cpp_flash_s"], row["ratio"]) > 0
        assert 0 < row["share"] < 1
