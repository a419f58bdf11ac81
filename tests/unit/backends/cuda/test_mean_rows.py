"""Mean pooling kernels: texts alone and in company under Triton's interpreter; machine code of five cards."""

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
def test_several_rows_are_read_ahead(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.mean_rows import mean_rows

    bounds = np.array([0, 4], np.int32), np.array([4, 9], np.int32)
    [launch] = record_launches(lambda: mean_rows(torch.zeros(9, 1024), *bounds))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.registers <= 64
    assert len(code.instructions("LDG.E")) >= 8


def test_texts_do_not_affect_each_other() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.mean_rows import mean_rows

    x = torch.randn(30, 200, generator=torch.Generator().manual_seed(1))[:, 20:180]
    firsts, stops = np.array([0, 1, 12], np.int32), np.array([1, 12, 30], np.int32)
    together = mean_rows(x, firsts, stops)
    for text in range(3):
        alone = mean_rows(x[firsts[text] : stops[text]], np.array([0], np.int32), stops[[text]] - firsts[[text]])
        assert torch.equal(alone[0], together[text])
    expected = torch.stack([x[first:stop].mean(dim=0) for first, stop in zip(firsts, stops, strict=True)])
    torch.testing.assert_close(together, expected)
