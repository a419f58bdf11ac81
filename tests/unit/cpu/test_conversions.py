"""The tables of kernels that convert blocks say of the formats what the formats say of themselves."""

import pytest

from sporelm.backends.cpu.kernels import blocks, widen
from sporelm.backends.cpu.quantizers import QUANTIZERS
from sporelm.quant import FORMATS, QuantFormat

WRITTEN = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"} | {
    "TQ1_0", "TQ2_0", "MXFP4", "F16", "BF16",
}  # fmt: skip


def test_the_formats_that_people_write_have_kernels() -> None:
    assert QUANTIZERS.keys() | blocks.NUMBERS.keys() >= WRITTEN
    assert widen.WIDENED.keys() | widen.NUMBERS.keys() >= WRITTEN


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer_knows_its_format(name: str) -> None:
    quantizer, known = QUANTIZERS[name], FORMATS[name]
    assert (quantizer.values, quantizer.nbytes) == (known.values, known.nbytes)
    assert quantizer.by_row == (known.weigh is not QuantFormat.weigh)


@pytest.mark.parametrize("name", widen.WIDENED)
def test_a_reader_knows_its_format(name: str) -> None:
    assert widen.WIDENED[name][:2] == (FORMATS[name].values, FORMATS[name].nbytes)


@pytest.mark.parametrize("name", [*blocks.NUMBERS, *widen.NUMBERS])
def test_single_numbers_are_of_two_bytes(name: str) -> None:
    assert (FORMATS[name].values, FORMATS[name].nbytes) == (1, 2)
