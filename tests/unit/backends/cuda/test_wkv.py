"""The kernels of RWKV's states as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("version", [6, 7])
def test_states_stay_in_registers(card: int, version: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.wkv import wkv6, wkv7

    heads, dim = 64, 64
    x, vector, bonus = torch.zeros(1, heads * dim, dtype=torch.bfloat16), torch.zeros(heads * dim), torch.zeros(64, 64)
    state, step = torch.zeros(3, heads * dim, dim), exact_step([Chunk(1, 1, 1)])
    launches = record_launches(
        lambda: (
            wkv7(*[x] * 5, vector, vector, bonus, state, *step) if version == 7 else wkv6(*[x] * 4, bonus, state, *step)
        )
    )
    assert_states_stay_in_registers(launches, card, max_registers=168, wide=2 * 32 // 4)
