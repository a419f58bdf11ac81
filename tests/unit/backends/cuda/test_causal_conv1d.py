"""Kernels of causal convolution as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import Chunk, exact_step


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("rows", "kernels"), [(1, 1), (200, 2)])
def test_channels_are_read_16_bytes_at_once(card: int, rows: int, kernels: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.causal_conv1d import causal_conv1d

    x, weight = torch.zeros(rows, 8192, dtype=torch.bfloat16), torch.zeros(4, 8192)
    state, step = torch.zeros(3, 3, 8192), exact_step([Chunk(rows, rows + 1, 1)])
    recorded = record_launches(lambda: causal_conv1d(x, weight, None, state, *step))
    launches = [each for each in recorded if 0 not in each.grid]
    assert len(launches) == kernels
    for launch in launches:
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 128
        assert any(".128" in each for each in code.instructions("LDG"))
