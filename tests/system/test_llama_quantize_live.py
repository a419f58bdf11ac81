"""Whole files against llama.cpp's quantizer, byte for byte, where TEST_LLAMA_QUANTIZE names its program."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mix_models import MODELS, MixModel, write
from sporelm.cli.main import main
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, write_imatrix
from sporelm.tools.quantize_model import list_quantizable_mixes

PROGRAM = os.environ.get("TEST_LLAMA_QUANTIZE", "")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="TEST_LLAMA_QUANTIZE names no llama-quantize")
FEW = ("Q4_K_M", "Q2_K", "IQ4_XS", "Q5_1")


def imatrix_of(model: MixModel) -> Imatrix:
    """Random sums for every matrix of layers; some experts met no row."""
    random, entries = np.random.default_rng(model.layers), {}
    for name, shape in model.shapes().items():
        if len(shape) > 1 and name.startswith("blk."):
            counts = random.integers(0, 4, shape[0]) * 50 if len(shape) == 3 else np.array([100])
            sums = random.random((len(counts), shape[-1]), np.float32) * np.float32(100)
            entries[name] = ImatrixEntry(sums * (counts > 0)[:, None].astype(np.float32), counts.astype(np.int64))
    return Imatrix(entries, ("text",), 3)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_files_are_those_of_llama_quantize(
    model: MixModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)  # the files hold the path of the importance matrix
    write(model, Path("m.gguf"))
    for form in ("gguf", "dat"):
        write_imatrix(Path(f"i.{form}"), imatrix_of(model))
    mixes = [mix for mix in list_quantizable_mixes() if mix != "Q1_0"] if request.config.getoption("--all") else FEW
    for mix in mixes:
        for given in ((), ("--imatrix", "i.gguf"), ("--imatrix", "i.dat")):
            theirs = subprocess.run([PROGRAM, *given, "m.gguf", "b.gguf", mix, "1"], capture_output=True, check=False)
            if theirs.returncode:
                assert mix == "Q2_K_S", "it takes an importance matrix"
                assert not given
                continue
            assert main(["gguf", "quantize", "m.gguf", "--type", mix, "-o", "a.gguf", "--force", *given]) == 0
            assert Path("a.gguf").read_bytes() == Path("b.gguf").read_bytes(), (mix, given)
