"""Planes of every format: their values, and their bytes."""

from typing import Any

import numpy as np
import pytest

from sporelm.quant import FOLDER_FORMATS, FORMATS, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from unit.backends.cuda.weights import pack, random_stored

WIDE = 4096
NOT_QUANTIZED = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64", "Q8_K")
# Bytes for a weight in planes, in rows of 4096, where they differ from the file's by more than a thousandth.
OTHER_BYTES = {
    "IQ1_M": 0.2266,  # scales of 3 bits take 4
    "IQ1_S": 0.2109,  # as in IQ1_M, and vectors have a bit for the sign of 1/8 each
    "IQ2_S": 0.3516,  # upper bits of indices take 8 for 4
    "IQ2_XXS": 0.2734,  # all signs are kept, and scales beside them
    "IQ3_S": 0.4531,  # a factor for each thread fills the words of upper bits of indices
    "IQ3_XXS": 0.3984,  # as in IQ2_XXS
    "IQ4_XS": 0.5391,  # scales of 6 bits take 8
    "Q3_K": 0.4453,
    "Q4_K": 0.5781,
    "Q5_K": 0.7031,
    "TQ1_0": 0.2578,  # 5 digits of base 3 take 10 bits for 8
    "Q8_1": 1.0625,  # without the sums
}


def formats() -> list[Any]:
    try:
        from sporelm.backends.cuda.formats import PLANE_FORMATS
    except Exception:  # without torch or Triton
        return [pytest.param("none", marks=pytest.mark.skip("torch and triton are not installed"))]
    return list(PLANE_FORMATS)


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN among 8-bit floats
@pytest.mark.parametrize("name", formats())
def test_values_are_those_of_the_format_bit_for_bit(torch: Any, name: str) -> None:
    values = (FORMATS | FOLDER_FORMATS)[name].values
    stored = random_stored(name, 5, 3 * max(values, 32))
    weight, expected = pack(stored, torch.float32), stored.dequantize()
    np.testing.assert_array_equal(weight.values.numpy(), expected)
    rows = torch.tensor([[4, 0], [1, 1]])
    np.testing.assert_array_equal(weight.select(rows).numpy(), expected[rows.numpy()])


@pytest.mark.parametrize("name", formats())
def test_planes_take_as_many_bytes_as_files(name: str) -> None:
    pytest.importorskip("torch")
    from sporelm.backends.cuda.cuda_weight import plane_bytes

    number_format = (FORMATS | FOLDER_FORMATS)[name]
    in_file = number_format.nbytes / number_format.values
    in_planes = plane_bytes(number_format, (3, WIDE)) / (3 * WIDE)
    assert in_planes == pytest.approx(OTHER_BYTES.get(name, in_file), abs=1e-3)


def test_all_quantized_formats_have_planes() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    from sporelm.backends.cuda.formats import PLANE_FORMATS

    assert PLANE_FORMATS.keys() == (FORMATS | FOLDER_FORMATS).keys() - {*NOT_QUANTIZED}


def test_experts_are_selected_as_matrices(torch: Any) -> None:
    from sporelm.backends.cuda.cuda_weight import CudaWeight

    stored = random_stored("Q4_K", 12, 256)
    planes = pack(stored, torch.float32).stored
    experts = CudaWeight(planes, (3, 4, 256), torch.float32, "float")
    expected = stored.dequantize().reshape(3, 4, 256)
    np.testing.assert_array_equal(experts.select(torch.tensor([2, 0])).numpy(), expected[[2, 0]])
    np.testing.assert_array_equal(experts.values.numpy(), expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_floats_are_converted_as_the_host_converts_them(name: str) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from sporelm.backends.cuda.cuda_weight import pack_floats

    values = np.random.default_rng(0).standard_normal((6, 40), np.float32)
    stored = StoredTensor("weight", FORMATS[name], (6, 40), quantize_tensor(FORMATS[name], values).reshape(-1))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = pack_floats(stored, dtype, torch.device("cpu"))
        assert torch.equal(found, torch.from_numpy(stored.dequantize()).to(dtype))
