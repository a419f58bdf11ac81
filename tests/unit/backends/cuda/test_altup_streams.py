"""AltUp kernels as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler


@pytest.mark.parametrize("card", CARDS)
def test_streams_are_read_16_bytes_at_once(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.altup_streams import altup_correct, altup_predict, gaussian_topk

    x, coefs = torch.zeros(3, 4, 2048), torch.zeros(3, 16)
    works = (
        lambda: altup_predict(x, coefs),
        lambda: altup_correct(x, x[:, 0], coefs[:, :4], x[:, 1]),
        lambda: gaussian_topk(torch.zeros(3, 16384), factor=1.6),
    )
    for work in works:
        [launch] = record_launches(work)
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 64
        assert any("128" in each.split()[0] for each in code.instructions("LDG.E"))
