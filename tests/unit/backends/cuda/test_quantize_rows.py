"""The rounding of rows: bit for bit as the reference under Triton's interpreter; machine code of five cards."""

import numpy as np
import pytest

from sporelm import ops
from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter

ACTIVATIONS = ("int8/32", "int8/256")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_products_and_sums_stay_apart(card: int, activation: str) -> None:
    """The sum that rounds would be exact in one operation with the product: the product must be rounded before it."""
    require_compiler()
    import torch

    from sporelm.backends.cuda.quantize_rows import quantize_rows

    [launch] = record_launches(lambda: quantize_rows(torch.zeros(3, 4096, dtype=torch.bfloat16), activation=activation))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.registers <= 48
    assert any("128" in each.split()[0] for each in code.instructions("LDG.E"))
    rounding = [each for each in code.instructions("FADD") + code.instructions("FFMA") if "12582912" in each]
    assert rounding
    assert all(each.startswith("FADD") for each in rounding)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_bit_is_that_of_the_reference(activation: str) -> None:
    """Halves, numbers beside them, denormal groups, zeros, and groups with infinity or NaN."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.quantize_rows import quantize_rows

    random = np.random.default_rng(1)
    x = random.standard_normal((11, 768)).astype(np.float32)
    x[1] = np.round(x[1] * 16) / 2
    x[1, ::32] = 127
    x[2] = np.nextafter(x[1], np.float32(0))
    x[3] = np.nextafter(x[1], np.float32(np.inf))
    x[4] *= np.float32(1e-38)
    x[5] *= np.float32(2e-37)  # beside the group whose inverse overflows
    x[6] = 0
    x[7] *= np.float32(1e-45)
    x[8] *= np.float32(1e37)
    x[9, ::64], x[10, ::96] = np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = ops.quantize_rows.reference(x, activation=activation).dequantize()
        found = quantize_rows(torch.from_numpy(x), activation=activation).values.numpy()
    is_number = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), is_number)
    assert np.array_equal(found[is_number].view(np.int32), expected[is_number].view(np.int32))


def test_rows_of_views_and_slots() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.quantize_rows import quantize_rows
    from sporelm.backends.torch.quantize_rows import quantize_rows as torch_quantize_rows

    wide = torch.randn(5, 3, 192, generator=torch.Generator().manual_seed(2), dtype=torch.float16)
    for x in (wide, wide[:, 1], wide[..., 64:128]):
        assert torch.equal(quantize_rows(x).values, torch_quantize_rows(x).values)
