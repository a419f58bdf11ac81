"""Number formats against ggml's own code: checksums of its blocks and values, see data/make_quant_goldens.py."""

from pathlib import Path

import numpy as np
import pytest

from quant_inputs import CASES, NORMAL, checksums, patterns, values
from sporelm.quant import FORMATS, dequantize_tensor, quantize_tensor

GOLDENS = np.load(Path(__file__).parents[2] / "data" / "quant_goldens.npz")
BLOCKED = sorted(name for name, number_format in FORMATS.items() if number_format.values > 1)
WRITTEN = [name for name in BLOCKED if FORMATS[name].can_quantize]
READ = [name for name in BLOCKED if name != "Q8_1"]  # which ggml itself only multiplies with


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WRITTEN)
def test_blocks_are_those_of_ggml(name: str, case: str) -> None:
    expected = GOLDENS[f"quantize/{name}"][list(CASES).index(case)]
    blocks = quantize_tensor(FORMATS[name], values(case, len(expected))).reshape(len(expected), -1)
    assert np.flatnonzero(checksums(blocks) != expected).tolist() == []


@pytest.mark.parametrize("name", READ)
def test_values_of_any_bits_are_those_of_ggml(name: str) -> None:
    number_format, expected = FORMATS[name], GOLDENS[f"dequantize/{name}"]
    got = number_format.dequantize(patterns(name, number_format.nbytes, len(expected)))
    assert np.flatnonzero(checksums(got) != expected).tolist() == []


@pytest.mark.parametrize("name", WRITTEN)
def test_a_block_depends_on_nothing_but_itself(name: str) -> None:
    x = values(NORMAL, 131)  # more than is searched at once
    alone = np.concatenate([quantize_tensor(FORMATS[name], row) for row in x[-4:]])
    assert np.array_equal(quantize_tensor(FORMATS[name], x)[-len(alone) :], alone)


@pytest.mark.parametrize("name", BLOCKED)
def test_no_values_give_no_blocks(name: str) -> None:
    number_format = FORMATS[name]
    blocks = np.zeros((0, number_format.nbytes), np.uint8)
    if number_format.can_quantize:
        assert np.array_equal(number_format.quantize(np.zeros((0, number_format.values), np.float32)), blocks)
    assert number_format.dequantize(blocks).shape == (0, number_format.values)
    assert dequantize_tensor(number_format, blocks, (0, number_format.values)).size == 0
