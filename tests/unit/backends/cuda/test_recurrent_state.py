"""Recurrent ops: padded steps, cuts and narrow numbers against torch's functions, under Triton's interpreter."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.recurrent_ops import (
    Chunk,
    RecurrentOp,
    exact_step,
    make_ops,
    padded_step,
    require_interpreter,
)

CHUNKED = ("causal_conv1d", "gated_delta_rule", "ssm_scan")
BY_ROW = ("selective_scan", "gated_lru", "lightning_attention", "gated_linear_attention", "wkv7", "wkv6")
NAMES = CHUNKED + BY_ROW
NARROW_TOLERANCE = 3 * 2.0**-8  # of results in bfloat16
SLOTS, DUMP_SLOT = 7, 6
# Sequences that go on and that begin, with one row, and with several blocks of 4 rows.
CHUNKS = (Chunk(1, 5, 3), Chunk(1, 1, 0), Chunk(10, 17, 4), Chunk(8, 8, 1), Chunk(3, 3, 5))
LONG_CHUNKS = (Chunk(1, 5, 3), Chunk(20, 25, 4), Chunk(70, 70, 1))


def run_op(op: RecurrentOp, functions: Any, rows: Any, state: Any, whose: Any, on_device: bool = False) -> Any:
    """Return the results of an op and the state after it."""
    import torch

    given = [torch.from_numpy(each) for each in whose] if on_device else whose
    held = state.clone()
    results = op.call(functions[op.name], rows, (held, *given))
    return (*(results if isinstance(results, tuple) else (results,)), held)


def make_inputs(op: RecurrentOp, tokens: int, dtype: Any = None) -> tuple[list[Any], Any]:
    """Return rows, and states of all slots."""
    import torch

    random = torch.Generator().manual_seed(3)
    rows = [torch.randn((tokens, width), generator=random).to(dtype or torch.float32) for width in op.widths]
    return rows, torch.randn((SLOTS, *op.state), generator=random)


def assert_close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    scale = expected.abs().max().item()
    assert (found.float() - expected.float()).abs().max().item() <= tolerance * scale


@pytest.mark.parametrize(("name", "is_narrow"), [(name, False) for name in CHUNKED] + [(name, True) for name in NAMES])
def test_padded_steps_equal_exact_ones(name: str, is_narrow: bool) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.op_kernels import own_functions
    from sporelm.backends.torch.op_functions import op_functions
    from sporelm.backends.torch.step_context import STEP

    op = make_ops()[name]
    exact = exact_step(CHUNKS)
    rows, state = make_inputs(op, int(exact[0][-1]), torch.bfloat16 if is_narrow else torch.float32)
    tolerance = NARROW_TOLERANCE if is_narrow else 1e-5
    whose, places = padded_step(CHUNKS, 4, decodes=4, blocks=8, dump_slot=DUMP_SLOT)
    padded_rows = [each.new_zeros((4 + 8 * 4, each.shape[1])) for each in rows]
    for padded, each in zip(padded_rows, rows, strict=True):
        padded[places] = each
    *expected, expected_state = run_op(op, op_functions(), [each.float() for each in rows], state, exact)
    with STEP.begin(4, False):
        *found, held = run_op(op, own_functions(), padded_rows, state, whose, on_device=True)
    for one, other in zip(found, expected, strict=True):
        assert one.isfinite().all()
        assert_close(one[places], other, tolerance)
    assert_close(held[:DUMP_SLOT], expected_state[:DUMP_SLOT], tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_depend_on_cuts_if_batch_invariant(name: str) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.op_kernels import own_functions
    from sporelm.backends.torch.step_context import STEP

    op, tokens = make_ops()[name], 20
    rows, state = make_inputs(op, tokens)
    with STEP.begin(1, True):
        *whole, held = run_op(op, own_functions(), rows, state, exact_step([Chunk(tokens, tokens, 2)]))
    pieces, cut_state = [], state
    for start, stop in ((0, 1), (1, 18), (18, tokens)):
        part = [each[start:stop] for each in rows]
        with STEP.begin(1, True):
            *found, cut_state = run_op(op, own_functions(), part, cut_state, exact_step([Chunk(stop - start, stop, 2)]))
        pieces.append(found)
    for number, each in enumerate(whole):
        assert torch.equal(each, torch.cat([piece[number] for piece in pieces]))
    assert torch.equal(held, cut_state)


@pytest.mark.parametrize("name", CHUNKED)
def test_long_chunks_of_narrow_numbers(name: str) -> None:
    """Several pieces of 64 rows, in bfloat16: against torch's functions on the same numbers in float32."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.op_kernels import own_functions
    from sporelm.backends.torch.op_functions import op_functions

    op = make_ops()[name]
    exact = exact_step(LONG_CHUNKS)
    rows, state = make_inputs(op, int(exact[0][-1]), torch.bfloat16)
    *found, held = run_op(op, own_functions(), rows, state, exact)
    *expected, expected_state = run_op(op, op_functions(), [each.float() for each in rows], state, exact)
    for one, other in zip((*found, held), (*expected, expected_state), strict=True):
        assert_close(one, other, NARROW_TOLERANCE)
    assert all(each.dtype == torch.bfloat16 for each in found)
    assert np.array_equal(held[0].numpy(), state[0].numpy())  # a slot of no sequence
