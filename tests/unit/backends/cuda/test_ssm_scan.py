"""Kernels of Mamba 2's scan as machine code of five cards, at the shapes of Mamba 2 with 2.7B parameters."""

from typing import Any

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step

HEADS, SIZE, DIM = 80, 128, 64


def record(rows: int) -> list[Any]:
    """Return the launches of one sequence with some rows, in bfloat16."""
    import torch

    from sporelm.backends.cuda.ssm_scan import ssm_scan

    x, dt = (torch.zeros(rows, width, dtype=torch.bfloat16) for width in (HEADS * DIM + 2 * SIZE, HEADS))
    decay, skip, bias = (torch.zeros(HEADS) for _ in range(3))
    state, step = torch.zeros(3, HEADS * SIZE, DIM), exact_step([Chunk(rows, rows, 1)])
    return record_launches(lambda: ssm_scan(x, dt, decay, skip, bias, state, *step, groups=1))


@pytest.mark.parametrize("card", CARDS)
def test_states_stay_in_registers(card: int) -> None:
    require_compiler()
    assert_states_stay_in_registers(record(1), card, max_registers=128, wide=2 * 32 // 4)


@pytest.mark.parametrize("card", CARDS)
def test_chunks_are_products_on_tensor_cores(card: int) -> None:
    require_compiler()
    launches = [each for each in record(200) if 0 not in each.grid]
    assert len(launches) == 2
    for launch in launches:
        code = compile_launch(launch, card)
        assert code.uses_tensor_cores
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert any(".128" in each for name in ("LDG", "LDGSTS") for each in code.instructions(name))
