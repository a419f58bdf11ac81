"""The kernel of Mamba 1's selective scan as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, assert_states_stay_in_registers, exact_step


@pytest.mark.parametrize("card", CARDS)
def test_states_stay_in_registers(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.selective_scan import selective_scan

    channels, size = 5120, 16
    x, dt, b, c = (torch.zeros(1, width, dtype=torch.bfloat16) for width in (channels, channels, size, size))
    decay, skip, state = torch.zeros(size, channels), torch.zeros(channels), torch.zeros(3, size, channels)
    step = exact_step([Chunk(1, 1, 1)])
    launches = record_launches(lambda: selective_scan(x, dt, b, c, decay, skip, state, *step))
    assert_states_stay_in_registers(launches, card, max_registers=128, wide=3 * 16 // 4)
