"""What the fuzzer found, each as small as it can be."""

from pathlib import Path

import numpy as np

from gguf_samples import values_of
from sporelm.quant import BF16
from sporelm.tools.verify import verify
from sporelm.weights.gguf import GgufWriter
from sporelm.weights.stored import StoredTensor


def test_signalling_nans_are_findings_without_a_warning(tmp_path: Path) -> None:
    words = np.array([[0x7F81, 0x3F80], [0, 0]], "<u2")
    writer = GgufWriter(tmp_path / "x.gguf")
    writer.add("general.architecture", "sample")
    writer.add_tensor("a.weight", StoredTensor("a.weight", BF16, (2, 2), words.view(np.uint8)))
    writer.add_tensor("b.weight", values_of((2, 2)))
    writer.write()
    assert any("1 values are NaN" in finding.message for finding in verify(tmp_path / "x.gguf").findings)
