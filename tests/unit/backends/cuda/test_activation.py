"""Activation kernels: machine code of five cards; views and infinities under Triton's interpreter."""

import numpy as np
import pytest

from sporelm import ops
from sporelm.ops.activation import KINDS
from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
def test_gates_read_halves_of_joined_rows_16_bytes_at_once(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.activation import activate_mul
    from sporelm.backends.cuda.elementwise import clamped_swiglu

    gate, up = torch.zeros(3, 2 * 14336, dtype=torch.bfloat16).split(14336, dim=1)
    for work in (
        lambda: activate_mul(gate, up, kind="silu"),
        lambda: activate_mul(gate, up, kind="gelu"),
        lambda: clamped_swiglu(gate, up, alpha=1.702, limit=7.0),
    ):
        [launch] = record_launches(work)
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.shared_bytes == 0
        assert code.registers <= 48
        assert len([each for each in code.instructions("LDG.E") if "128" in each.split()[0]]) == 2
        assert not code.instructions("CALL")


@pytest.mark.parametrize("kind", KINDS)
def test_functions_of_views_are_accurate(kind: str) -> None:
    """Halves of joined rows, of three dimensions, and the ends of the range of numbers."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.activation import activate_mul

    random = torch.Generator().manual_seed(1)
    joined = torch.randn(3, 2, 1300, generator=random) * 4
    joined[0, 0, :4] = torch.tensor([torch.nan, 1e4, -1e4, 0])
    for gate, up in (joined.split(650, dim=2), joined.flatten(1).split(1300, dim=1)):
        with np.errstate(invalid="ignore"):  # of NaN
            expected = torch.from_numpy(ops.activate_mul.reference(gate.numpy(), up.numpy(), kind=kind))
        found = activate_mul(gate, up, kind=kind)
        torch.testing.assert_close(found, expected, rtol=4e-6, atol=1e-9, equal_nan=True)
