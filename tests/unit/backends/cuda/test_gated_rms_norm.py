"""Gated norm kernels: machine code of five cards; groups wider than a program under Triton's interpreter."""

from typing import Any

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("group", "first"), [(128, "norm"), (5120, "gate")])
def test_groups_stay_in_registers(card: int, group: int, first: str) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.gated_rms_norm import gated_rms_norm

    x, weight = torch.zeros(3, 5120, dtype=torch.bfloat16), torch.ones(group)
    [launch] = record_launches(lambda: gated_rms_norm(x, x.clone(), weight, eps=1e-6, group=group, first=first))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 128
    assert any(".128" in each for each in code.instructions("LDG"))


@pytest.mark.parametrize("first", ["norm", "gate"])
def test_groups_wider_than_a_program(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda import gated_rms_norm as kernels
    from sporelm.backends.torch.gated_rms_norm import gated_rms_norm

    monkeypatch.setattr(kernels, "MAX_BLOCK", 16)
    x, gate, weight = torch.randn(3, 74), torch.randn(3, 74), torch.randn(2, 37)
    options: dict[str, Any] = {"eps": 1e-6, "group": 37, "first": first}
    expected = gated_rms_norm(x, gate, weight.flatten().view(2, 37), **options)
    torch.testing.assert_close(kernels.gated_rms_norm(x, gate, weight, **options), expected)
