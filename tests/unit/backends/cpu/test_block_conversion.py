"""The tables of kernels that convert blocks say of the formats what the formats say of themselves."""

from typing import Any

import pytest

from sporelm.backends.cpu.jit import emit_object_for
from sporelm.backends.cpu.kernels import block_conversion, block_dequantization
from sporelm.backends.cpu.quantizers import QUANTIZERS
from sporelm.quant import FORMATS, QuantFormat
from unit.backends.cpu.other_machines import MACHINES, symbols
from unit.backends.cpu.system_symbols import expected

WRITTEN = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"} | {
    "TQ1_0", "TQ2_0", "MXFP4", "F16", "BF16",
}  # fmt: skip


def test_the_formats_that_people_write_have_kernels() -> None:
    assert QUANTIZERS.keys() | block_conversion.NARROW_FLOATS.keys() >= WRITTEN
    assert block_dequantization.BLOCK_READERS.keys() | block_dequantization.WIDEN_FLOATS.keys() >= WRITTEN


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_quantizer_knows_its_format(name: str) -> None:
    quantizer, known = QUANTIZERS[name], FORMATS[name]
    assert (quantizer.values, quantizer.nbytes) == (known.values, known.nbytes)
    assert quantizer.by_row == (known.weigh is not QuantFormat.weigh)


@pytest.mark.parametrize("name", block_dequantization.BLOCK_READERS)
def test_a_reader_knows_its_format(name: str) -> None:
    assert block_dequantization.BLOCK_READERS[name][:2] == (FORMATS[name].values, FORMATS[name].nbytes)


@pytest.mark.parametrize("name", [*block_conversion.NARROW_FLOATS, *block_dequantization.WIDEN_FLOATS])
def test_single_numbers_are_of_two_bytes(name: str) -> None:
    assert (FORMATS[name].values, FORMATS[name].nbytes) == (1, 2)


def machines() -> list[Any]:
    """(system, target, formats): a few formats on two of them by default."""
    few = [pytest.param(*machine, ("Q4_1", "Q5_K", "F16"), id=f"{machine[0]}-few") for machine in MACHINES[:2]]
    every = (*QUANTIZERS, *block_conversion.NARROW_FLOATS)
    return few + [
        pytest.param(triple, target, every, id=f"{triple}-{target.name}", marks=pytest.mark.all)
        for triple, target in MACHINES
    ]


@pytest.mark.parametrize(("triple", "target", "names"), machines())
def test_conversions_are_emitted_for_other_systems(triple: str, target: Any, names: tuple[str, ...]) -> None:
    kernels = [block_conversion.count_nonfinite(target)]
    for name in names:
        kernels += [
            block_conversion.quantize_blocks(target, name, False),
            block_dequantization.dequantize_blocks(target, name),
        ]
        if name in QUANTIZERS:
            kernels.append(block_conversion.quantize_blocks(target, name, True))
    for kernel in kernels:
        found = symbols(emit_object_for(kernel, target, triple))
        assert kernel.name in found.defined
        assert found.undefined <= expected(triple), f"{kernel.name} asks for {found.undefined}"
