"""Rows of tables as machine code of five cards."""

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.weights import empty_weight


@pytest.mark.parametrize("card", CARDS)
def test_rows_are_gathered_from_planes(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.token_embedding import embedding

    table = empty_weight("Q6_K", 1000, 4096)
    ids = torch.zeros(3, dtype=torch.int32)
    [launch] = record_launches(lambda: embedding(ids, table))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert any("128" in each.split()[0] for each in code.instructions("LDG.E")), code.instructions("LDG")
