"""Norm kernels as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("width", [128, 4096])
def test_norms_keep_rows_in_registers_and_read_16_bytes_at_once(card: int, width: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.norm import add_rms_norm

    x = torch.zeros(4, 4096, dtype=torch.bfloat16)
    weight = torch.ones(width)
    [launch] = record_launches(lambda: add_rms_norm(x, x.clone(), weight.expand(width), eps=1e-6))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 128
    if width == 4096:
        assert any("128" in each.split()[0] for each in code.instructions("LDG.E")), code.instructions("LDG")
