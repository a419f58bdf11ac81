"""Products with a matrix for each head: machine code of five cards; rows alone and in company under the interpreter."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, "bfloat16"), (300, "bfloat16"), (1, "float32")])
def test_matrices_are_read_16_bytes_at_once(card: int, tokens: int, dtype: str) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.cuda_weight import CudaWeight
    from sporelm.backends.cuda.linear_heads import linear_heads

    kind = getattr(torch, dtype)
    weight = CudaWeight(torch.zeros(4, 512, 128, dtype=kind), (4, 512, 128), kind, "float")
    [launch] = record_launches(lambda: linear_heads(torch.zeros(tokens, 4 * 192, dtype=kind), weight))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.registers <= 168
    assert code.uses_tensor_cores == (dtype == "bfloat16")
    assert any("128" in each.split()[0] for each in code.instructions("LDG.E") + code.instructions("LDGSTS"))


def test_a_row_alone_and_in_company_is_the_same() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.cuda_weight import CudaWeight
    from sporelm.backends.cuda.linear_heads import linear_heads
    from sporelm.backends.torch.step_context import STEP

    random = torch.Generator().manual_seed(1)
    weight = CudaWeight(torch.randn(2, 70, 90, generator=random), (2, 70, 90), torch.float32, "float")
    x = torch.randn(130, 2 * 100, generator=random)
    with STEP.begin(1, True):
        together, alone = linear_heads(x, weight), linear_heads(x[77:78], weight)
    # numpy multiplies the tiles of interpreted kernels: on some CPUs its sums depend on a row's place in them.
    assert torch.allclose(alone[0], together[77], rtol=0, atol=1e-6 * float(together.abs().max()))
