"""Argmax and top-k kernels: machine code of five cards; rows of several chunks under Triton's interpreter."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import (
    CARDS,
    SHARED_BYTES,
    compile_launch,
    on_each_card,
    record_launches,
    require_compiler,
)
from unit.backends.cuda.recurrent_ops import require_interpreter

VOCAB = 151_936
BYTES_OF_ONE_LOAD = "128"


@pytest.mark.parametrize("card", CARDS)
def test_passes_over_rows_read_16_bytes_at_once(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.logit_selection import argmax, view_logits

    logits = torch.zeros(3, VOCAB)
    launches = [
        *record_launches(lambda: argmax(logits)),
        *record_launches(lambda: view_logits(logits).select_greatest(64)),
    ]
    names = [launch.kernel.__name__ for launch in launches]
    for name in ("greatest_entry_kernel", "argmax_kernel", "count_digits_kernel", "gather_greatest_kernel"):
        at = len(names) - 1 - names[::-1].index(name)  # of the passes the last one, which does most
        code = compile_launch(launches[at], card)
        assert code.stack_bytes == 0
        assert code.shared_bytes <= SHARED_BYTES[card]
        assert code.registers <= 128
        assert not code.instructions("ATOM")
        if name != "argmax_kernel":
            assert any(BYTES_OF_ONE_LOAD in each.split()[0] for each in code.instructions("LDG.E"))


@pytest.mark.parametrize(("k", "card"), [*on_each_card(64), (4096, 90)])
def test_candidates_are_sorted_in_registers(k: int, card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.logit_selection import view_logits

    *_, launch = record_launches(lambda: view_logits(torch.zeros(3, VOCAB)).select_greatest(k))
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]


def random_rows(kind: str, rows: int, vocab: int) -> Any:
    """Return logits of several chunks: `plain`, with many `ties`, all `equal`, with both `zeros`, or `unfit`."""
    import torch

    random = np.random.default_rng(len(kind))
    values = random.standard_normal((rows, vocab)).astype(np.float32) * 3
    if kind == "ties":
        values = np.round(values)
    if kind == "equal":
        values[:] = 2.5
    if kind == "zeros":
        values = np.where(random.random(values.shape) < 0.5, np.float32(0), np.float32(-0.0))
    if kind == "unfit":
        values[random.random(values.shape) < 0.999] = -np.inf
        values[0, [5, 5000]] = np.nan
        values[1, 6000] = np.inf
    return torch.from_numpy(values)


@pytest.mark.parametrize(
    ("kind", "k"), [("plain", 1), ("plain", 90), ("ties", 9), ("equal", 20), ("zeros", 5), ("unfit", 30)]
)
def test_rows_of_several_chunks(kind: str, k: int) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.logit_selection import argmax, top_k
    from sporelm.backends.torch.logit_selection import argmax as torch_argmax
    from sporelm.backends.torch.logit_selection import top_k as torch_top_k

    logits = random_rows(kind, 2, 9001)
    assert torch.equal(argmax(logits), torch_argmax(logits))
    (found, ids), (expected, expected_ids) = top_k(logits, k=k), torch_top_k(logits, k=k)
    assert torch.equal(ids, expected_ids)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_rows_of_a_view() -> None:
    """Rows that lie apart, and columns that do."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.logit_selection import argmax

    logits = random_rows("plain", 4, 500)
    for view in (logits[::2, 7:300], logits.T[:200].contiguous().T):
        assert torch.equal(argmax(view), view.argmax(dim=1).int())
