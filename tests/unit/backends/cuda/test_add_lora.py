"""LoRA kernels: machine code of five cards; rows alone and in company under Triton's interpreter."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter

WIDTH, OUT, SLOTS = 1100, 150, 3


def make_arguments(rows: int, rank: int, dtype: Any) -> tuple[Any, ...]:
    """Return y, x, the slot of each row, and the adapters."""
    import torch

    random = torch.Generator().manual_seed(rows)
    y, x = (torch.randn(rows, width, generator=random).to(dtype) for width in (OUT, WIDTH))
    a = torch.randn(SLOTS, rank, WIDTH, generator=random) * WIDTH**-0.5
    b = torch.randn(SLOTS, rank, OUT, generator=random) * rank**-0.5
    return y, x, np.arange(rows, dtype=np.int32) * 7 % (SLOTS + 1) - 1, a, b


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_use_no_stack(card: int, dtype: str) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.add_lora import add_lora

    kind = getattr(torch, dtype)
    x, y = torch.zeros(40, 4096, dtype=kind), torch.zeros(40, 4096, dtype=kind)
    a, b, which = torch.zeros(4, 64, 4096), torch.zeros(4, 64, 4096), torch.zeros(40, dtype=torch.int32)
    for launch in record_launches(lambda: add_lora(y, x, which, a, b)):
        code = compile_launch(launch, card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 255
        assert code.uses_tensor_cores == (dtype == "bfloat16")
        assert any("128" in each.split()[0] for each in code.instructions("LDG.E") + code.instructions("LDGSTS"))


@pytest.mark.parametrize("rank", [8, 80])
def test_rows_of_several_slots(rank: int) -> None:
    """Ranks below and above a block, and slots on the device."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.add_lora import add_lora
    from sporelm.backends.torch.add_lora import add_lora as torch_add_lora
    from sporelm.backends.torch.step_context import STEP

    y, x, which, a, b = make_arguments(37, rank, torch.float32)
    for slots in (which, torch.from_numpy(which)):
        with STEP.begin(1, False):
            found, expected = add_lora(y, x, slots, a, b), torch_add_lora(y, x, slots, a, b)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(found[which < 0], y[which < 0])


def test_a_row_alone_and_in_company_is_the_same() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.add_lora import add_lora
    from sporelm.backends.torch.step_context import STEP

    y, x, which, a, b = make_arguments(37, 16, torch.float32)
    with STEP.begin(1, True):
        together = add_lora(y, x, which, a, b)
    for row in (0, 5, 36):
        with STEP.begin(1, True):
            alone = add_lora(y[row : row + 1], x[row : row + 1], which[row : row + 1], a, b)
        assert torch.equal(alone[0], together[row])
