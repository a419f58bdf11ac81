"""The kernel of gated linear attention as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step


@pytest.mark.parametrize("card", CARDS)
def test_states_stay_in_registers(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.gated_linear_attention import gated_linear_attention

    heads, key_heads, dim = 40, 8, 128
    r, k = (torch.zeros(1, count * dim, dtype=torch.bfloat16) for count in (heads, key_heads))
    state, step = torch.zeros(3, heads * dim, dim), exact_step([Chunk(1, 1, 1)])
    launches = record_launches(
        lambda: gated_linear_attention(r, r, k, k, state, *step, heads=heads, key_heads=key_heads)
    )
    assert_states_stay_in_registers(launches, card, max_registers=128, wide=2 * 32 // 4)
