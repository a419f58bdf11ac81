"""Regression tests for faults that the fuzzer found, reduced to the least input."""

from pathlib import Path

import numpy as np
import pytest

from fuzz.seeds import make
from gguf_samples import values_of
from sporelm.cli.main import main
from sporelm.errors import ModelFileError, RequestError
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.quant import BF16
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tools.imatrix_file import Imatrix, ImatrixEntry, merge_imatrices, write_imatrix
from sporelm.tools.verify import verify_model


def test_signalling_nans_are_findings_without_a_warning(tmp_path: Path) -> None:
    words = np.array([[0x7F81, 0x3F80], [0, 0]], "<u2")
    writer = GgufWriter(tmp_path / "x.gguf")
    writer.add("general.architecture", "sample")
    writer.add_tensor("a.weight", StoredTensor("a.weight", BF16, (2, 2), words.view(np.uint8)))
    writer.add_tensor("b.weight", values_of((2, 2)))
    writer.write()
    assert any("1 values are NaN" in finding.message for finding in verify_model(tmp_path / "x.gguf").findings)


@pytest.mark.parametrize("value", [1e38, np.inf, np.nan])
def test_sums_that_float32_cannot_hold_are_refused(value: float) -> None:
    entries = {"a.weight": ImatrixEntry(np.full((1, 4), value, np.float32), np.array([3], np.int64))}
    with pytest.raises(ModelFileError, match="are not finite"):
        merge_imatrices([Imatrix(entries, is_legacy=True, path=Path("x.dat"))])


@pytest.mark.parametrize(("count", "chunks"), [(1 << 52, 3), (7, 1 << 31)], ids=["calls", "chunks"])
def test_counts_that_the_older_form_cannot_tell_are_refused(tmp_path: Path, count: int, chunks: int) -> None:
    entries = {"a.weight": ImatrixEntry(np.ones((1, 4), np.float32), np.array([count], np.int64))}
    with pytest.raises(RequestError, match=r"write \.gguf instead"):
        write_imatrix(tmp_path / "x.dat", Imatrix(entries, ("text",), chunks, 8))
    assert list(tmp_path.iterdir()) == []


def test_signalling_nans_are_scaled_without_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make("minicpm").write(tmp_path)
    with open_gguf(path) as model:
        place = model.tensors["output_norm.weight"].offset
    data = bytearray(path.read_bytes())
    data[place : place + 4] = b"\x01\x00\x80\x7f"
    path.write_bytes(data)
    assert main(["gguf", "convert", str(path), "-x", "to-llama", "-o", str(tmp_path / "out.gguf")]) == 0
    assert capsys.readouterr().err == ""
