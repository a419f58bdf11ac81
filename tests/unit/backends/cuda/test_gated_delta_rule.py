"""Kernels of the gated delta rule as machine code of five cards, at the shapes of Qwen3-Next and Kimi Linear."""

from typing import Any

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step, require_interpreter

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
    assert_states_stay_in_registers(record(1, has_row_decays), card, max_registers=128, wide=2 * 32 // 4)


@pytest.mark.parametrize("card", CARDS)
def test_chunks_are_products_on_tensor_cores(card: int) -> None:
    require_compiler()
    launches = [each for each in record(200) if 0 not in each.grid]
    assert len(launches) == 2
    for launch in launches:
        code = compile_launch(launch, card)
        assert code.uses_tensor_cores
        assert code.stack_bytes <= 16
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert any(".128" in each for name in ("LDG", "LDGSTS") for each in code.instructions(name))


def test_chunks_of_equal_keys() -> None:
    """Each row corrects all that rows before it wrote: powers of their products are far greater than the inverse."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.gated_delta_rule import gated_delta_rule
    from sporelm.backends.torch.gated_delta_rule import gated_delta_rule as plain

    rows, dim = 70, 16
    x = torch.randn(1, 3 * dim).expand(rows, -1).clone()
    x[:, 2 * dim :] = torch.randn(rows, dim)
    x, alpha, beta = (each.bfloat16() for each in (x, torch.full((rows, 1), -9.0), torch.full((rows, 1), 9.0)))
    decay, bias, state, step = (
        -torch.ones(1),
        torch.zeros(1),
        torch.zeros(1, dim, dim),
        exact_step([Chunk(rows, rows, 0)]),
    )
    expected_state = state.clone()
    wide = [each.float() for each in (x, alpha, beta)]
    expected = plain(*wide, decay, bias, expected_state, *step, key_heads=1, order="each")
    found = gated_delta_rule(x, alpha, beta, decay, bias, state, *step, key_heads=1, order="each")
    torch.testing.assert_close(found.float(), expected, atol=0.03 * expected.abs().max().item(), rtol=0)
    torch.testing.assert_close(state, expected_state, atol=0.03 * expected_state.abs().max().item(), rtol=0)
