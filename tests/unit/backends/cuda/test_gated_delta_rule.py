"""Kernels of the gated delta rule as machine code of five cards, at the shapes of Qwen3-Next and Kimi Linear."""

from typing import Any

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, exact_step

HEADS, DIM = 32, 128


def record(rows: int, has_row_decays: bool = False) -> list[Any]:
    """Return the launches of one sequence with some rows, in bfloat16."""
    import torch

    from sporelm.backends.cuda.gated_delta_rule import gated_delta_rule

    key_heads = HEADS if has_row_decays else HEADS // 2
    decays = HEADS * DIM if has_row_decays else HEADS
    x, alpha, beta = (
        torch.zeros(rows, width, dtype=torch.bfloat16) for width in ((2 * key_heads + HEADS) * DIM, decays, HEADS)
    )
    decay, bias, state = torch.zeros(HEADS), torch.zeros(decays), torch.zeros(3, HEADS * DIM, DIM)
    step = exact_step([Chunk(rows, rows, 1)])
    return record_launches(
        lambda: gated_delta_rule(x, alpha, beta, decay, bias, state, *step, key_heads=key_heads, order="each")
    )


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("has_row_decays", [False, True])
def test_states_stay_in_registers(card: int, has_row_decays: bool) -> None:
    require_compiler()
    [launch] = (each for each in record(1, has_row_decays) if 0 not in each.grid)
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 128
    wide = [each for name in ("LDG", "STG") for each in code.instructions(name) if ".128" in each]
    assert len(wide) >= 2 * 32 // 4, "32 numbers of a thread are read and written, 4 at once"
