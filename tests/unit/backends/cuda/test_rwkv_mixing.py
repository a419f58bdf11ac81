"""RWKV's token shift: machine code of five cards; more mixes than a launch takes under Triton's interpreter."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
def test_rows_are_read_16_bytes_at_once(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.rwkv_mixing import blend, mix_rows

    x, mix = torch.zeros(3, 4096, dtype=torch.bfloat16), torch.zeros(4096)
    for launch in record_launches(lambda: (mix_rows(x, x, [mix] * 6), blend(x, x, x))):
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.registers <= 64
        assert any(".128" in each for each in code.instructions("LDG"))


def test_more_mixes_than_a_launch_takes() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.rwkv_mixing import mix_rows
    from sporelm.backends.torch.rwkv_mixing import mix_rows as plain

    x, delta, mixes = torch.randn(3, 70), torch.randn(3, 70), torch.randn(8, 70).unbind()
    for more in ((), torch.randn(8, 3, 70).unbind()):
        for found, expected in zip(mix_rows(x, delta, mixes, more), plain(x, delta, mixes, more), strict=True):
            torch.testing.assert_close(found, expected)
