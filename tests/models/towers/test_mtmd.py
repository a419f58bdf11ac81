"""Pictures in prompts against llama.cpp's libmtmd, from the same two GGUF files; where SPORE_PEER names its folder."""

import os
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
