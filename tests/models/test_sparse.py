"""Sparse attention in whole models: a choice of more positions than a sequence has."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from families import EVERY, write_case
from families.case import TOKENS
from sporelm.ops.paged_attention import PAGE
from stepping import Stepper

(CASE,) = (case for case in EVERY if case.name == "deepseek32")


def test_lists_are_no_longer_than_a_sequence(cpu: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """A file may say that a query sees a million positions: a step has no memory for lists of them."""
    found = []
    for index, chosen in enumerate((1 << 20, TOKENS)):
        case = replace(CASE, config=CASE.config | {"index_topk": chosen})
        runner = load(write_case(tmp_path / str(index), case), cpu, context=2 * PAGE, eager=False)
        assert runner.plan is not None
        lists = {call.results[0].shape[1] for call in runner.plan.graph.calls if call.op.name == "topk_indexer"}
        assert lists == {min(chosen, 2 * PAGE)}
        found.append(runner.logits(case.ids()))
        runner.close()
    assert np.array_equal(*found)
