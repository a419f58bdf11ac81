"""The kernel of lightning attention as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step


@pytest.mark.parametrize("card", CARDS)
def test_states_stay_in_registers(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.lightning_attn import lightning_attention

    heads, dim = 64, 128
    x, decay = torch.zeros(1, heads * 3 * dim, dtype=torch.bfloat16), torch.zeros(heads)
    state, step = torch.zeros(3, heads * dim, dim), exact_step([Chunk(1, 1, 1)])
    launches = record_launches(lambda: lightning_attention(x, decay, state, *step))
    assert_states_stay_in_registers(launches, card, max_registers=128, wide=2 * 32 // 4)
