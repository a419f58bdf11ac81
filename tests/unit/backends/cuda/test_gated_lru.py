"""The kernel of Griffin's gated unit as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step


@pytest.mark.parametrize("card", CARDS)
def test_states_stay_in_registers(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.gated_lru import gated_lru

    x, decay = torch.zeros(1, 2560, dtype=torch.bfloat16), torch.zeros(2560)
    biases, state = torch.zeros(10, 256), torch.zeros(3, 10, 256)
    step = exact_step([Chunk(1, 1, 1)])
    launches = record_launches(lambda: gated_lru(x, x, x, decay, biases, biases, state, *step))
    assert_states_stay_in_registers(launches, card, max_registers=64, wide=0)
