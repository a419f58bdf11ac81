"""transformers reads what to-hf writes: the logits and the ids of the folder that from-hf was given."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from families import CASES, POSITIONS, Case, write_case
from hf_folders import tokenizer_json, write_model, write_tokenizer
from sporelm.errors import UnsupportedModel
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.save_folder import save_folder
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models
from tiny_models import ROPES, TINY, Tiny

LEFT_OUT = ("rope-dynamic",)  # GGUF files have no words for it


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[live]' compares live")
    reason = "transformers is not installed: pip install 'sporelm[live]' compares live"
    found = pytest.importorskip("transformers", reason=reason)
    found.logging.disable_progress_bar()
    return found


def logits(transformers: Any, folder: Path, ids: list[int]) -> np.ndarray:
    import torch

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        found: np.ndarray = model.eval()(torch.tensor([ids])).logits[0].numpy()
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "tiny", [tiny for tiny in (*TINY, *ROPES) if tiny.name not in LEFT_OUT], ids=lambda tiny: tiny.name
)
def test_logits_and_ids_come_back(transformers: Any, tiny: Tiny, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tiny)
    file, back = tmp_path / "m.gguf", tmp_path / "back"
    save_models([OutputFile(file, from_hf(folder).model)])
    save_folder(to_hf(file), back, shard_bytes=40_000)
    wanted, found = (logits(transformers, place, tiny.ids()) for place in (folder, back))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 if tiny in ROPES else 0)
    ids = [transformers.AutoTokenizer.from_pretrained(place).encode("abc!Hi") for place in (folder, back)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 6


@pytest.fixture
def goldens(transformers: Any) -> Iterator[Any]:
    """The script that asks transformers."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import make_family_goldens

        yield make_family_goldens
    finally:
        sys.path.pop(0)


@pytest.mark.all
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [case for case in CASES if not case.numpy], ids=lambda case: case.name)
def test_folders_of_families_come_back(transformers: Any, goldens: Any, case: Case, tmp_path: Path) -> None:
    """transformers makes the same of a family's folder that has been a GGUF file."""
    folder, file, back = write_case(tmp_path / "model", case), tmp_path / "m.gguf", tmp_path / "back"
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    try:
        save_models([OutputFile(file, from_hf(folder).model)])
    except UnsupportedModel as why:
        pytest.skip(str(why))
    made = to_hf(file)
    architecture = json.loads(made.texts["config.json"])["architectures"][0]
    if not hasattr(transformers, architecture):
        pytest.skip(f"transformers has no {architecture}")
    save_folder(made, back, shard_bytes=1 << 30)
    wanted = np.load(goldens.GOLDENS / f"{case.name}.npy")
    found = goldens.decoded(case, back)[list(POSITIONS)]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.ptp(wanted))
