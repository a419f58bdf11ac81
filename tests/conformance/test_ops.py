"""Every op, on every CPU target, against its numpy meaning."""

from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from close import assert_close
from conformance.agreement import assert_agrees
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.evals.conformance.all_cases import CASES
from sporelm.evals.conformance.conformance_case import EACH_KIND, FORMAT_NAMES, Arrays, Case, width_of
from sporelm.evals.conformance.random_weights import ALIKE, blocks_of
from sporelm.quant import FORMATS, dequantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32


def on_targets() -> list[Any]:
    """(target, case): all of them on the best target, the common ones on avx2, which most CPUs have, and on one of the
    other targets in turn; the rest is marked `all`."""
    turns = cycle([target for target in TARGETS[1:] if target != "avx2"] or [""])
    turn_of = {str(case): next(turns) for case in CASES if case.common and not case.rare}
    found = []
    for target in TARGETS:
        for case in CASES:
            if target == TARGETS[0]:
                rare = case.rare
            else:
                rare = str(case) not in turn_of or target not in ("avx2", turn_of[str(case)])
            found.append(pytest.param(target, case, id=f"{target}-{case}", marks=[pytest.mark.all] if rare else []))
    return found


@pytest.mark.parametrize(("opened_cpu", "case"), on_targets(), indirect=["opened_cpu"])
def test_agrees_with_the_meaning(cpu: Any, expected: Callable[[Case], Arrays], case: Case) -> None:
    assert_agrees(case.run(cpu), expected(case), case.exact)


def test_every_op_has_cases_on_every_target() -> None:
    assert {case.op for case in CASES if case.common and not case.rare} == ops.ALL.keys()


@pytest.mark.parametrize("op", ["linear", "linear_group", "linear_silu_mul", "embedding"])
def test_every_format_has_cases_on_every_target(op: str) -> None:
    """In every bucket: one token, few, many."""
    names = [case.name for case in CASES if case.op == op and case.common and not case.rare]
    several = op in ("linear_group", "linear_silu_mul")
    for format_name in EACH_KIND if several else sorted({*FORMAT_NAMES} - {*ALIKE}):
        mine = [name for name in names if name.split()[0] == format_name]
        assert mine, f"{op} has no case of {format_name}"
        if op != "embedding":
            assert {name.rsplit(" x", 1)[1] for name in mine} >= {"1", "7", "121"}


@pytest.mark.parametrize("format_name", sorted(ALIKE))
def test_every_other_format_has_cases_on_the_best_target(format_name: str) -> None:
    names = {f"{case.op} {case.name}" for case in CASES if not case.rare}
    mine = [name for name in names if name.split()[1] == format_name]
    assert {name.rsplit(" x", 1)[1] for name in mine if name.startswith("linear")} >= {"1", "7", "33"}
    assert any(name.startswith("embedding") for name in mine)


def test_cases_have_names_of_their_own() -> None:
    assert [name for name, count in Counter(map(str, CASES)).items() if count > 1] == []


def test_the_cpu_has_a_kernel_for_every_op_that_it_needs(cpu: Any) -> None:
    """It samples on the host: for the ops that sample on a device the reference stands in."""
    assert cpu.missing_kernels() == sorted(name for name, op in ops.ALL.items() if op.__module__.endswith(".sampling"))


@pytest.mark.parametrize("format_name", [format_name for format_name in FORMAT_NAMES if format_name not in ALIKE])
def test_ids_outside_the_table_give_nan_and_leave_the_others(cpu: Any, format_name: str) -> None:
    table = np.random.default_rng(0).standard_normal((33, width_of(format_name, 1)), np.float32)
    blocks = blocks_of(FORMATS[format_name], table)
    weight = cpu.pack(StoredTensor("table", FORMATS[format_name], table.shape, blocks))
    ids = np.array([3, -1, 33, 2**31 - 1, -(2**31), 32, 34, 48], np.int32)
    found = ops.embedding(cpu.tensor(ids), weight).numpy()
    assert np.isnan(found[[1, 2, 3, 4, 6, 7]]).all()
    wanted = dequantize_tensor(FORMATS[format_name], blocks, table.shape)
    assert np.array_equal(found[[0, 5]], wanted[[3, 32]])
    filled = ops.embedding(cpu.tensor(ids), weight, fills=True).numpy()
    assert np.array_equal(filled, wanted[np.where((ids >= 0) & (ids < 33), ids, 0)])
    part = ops.embedding(cpu.tensor(ids), weight, first=2).numpy()
    is_inside = (ids >= 2) & (ids < 35)
    assert np.array_equal(part, np.where(is_inside[:, None], wanted[np.where(is_inside, ids - 2, 0)], 0))


def test_a_sequence_without_rows_changes_nothing(cpu: Any, reference: Any) -> None:
    """As many rows as sequences, yet not one each."""
    results = []
    for backend in (reference, cpu):
        cache = backend.allocate_pages(4, [(1, 16)], F32)[0]
        backend.import_pages(cache, range(4), np.random.default_rng(1).standard_normal((4, 2, 1, 64, 16), np.float32))
        q = backend.tensor(np.random.default_rng(2).standard_normal((2, 16), np.float32))
        numbers = ([0, 0, 2], [5, 70], [[0, 1], [2, 3]])
        results.append(ops.attention(q, cache, *(backend.tensor(np.array(n, np.int32)) for n in numbers), scale=0.25))
    assert_close(results[1].numpy(), results[0].numpy(), "f32")
