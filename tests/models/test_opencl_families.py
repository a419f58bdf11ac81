"""Tiny models of families on the OpenCL back-end: their references' logits, in chunks, and the CPU's greedy tokens.

In float32; a quantized file within what rounding single activations to int8 the other way changes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close, assert_near_in_nat
from families import CASES, POSITIONS, Case, write_case
from family_references import assert_like, reference
from sporelm.evals.opencl_families import OPENCL_FAMILIES
from sporelm.quant import Q4_K, Q8_0, QuantFormat
from stepping import Stepper
from tiny_files import write_gguf
from tiny_models import SUPER, WIDE, Tiny

CONTEXT, NEW_TOKENS = 192, 12
COMMON = ("llama", "qwen2", "gpt2", "mixtral")
FIRST = {case.family: case for case in reversed(CASES)}  # of each family
RARE = tuple(FIRST[family].name for family in sorted(OPENCL_FAMILIES) if FIRST[family].name not in COMMON)
MORE = ("qwen3-odd-tied-biases", "mixtral-odd-tied")
EAGER = ("llama", "internlm2", "internlm3", "mixtral", "qwen2", "qwen2moe", "qwen3", "qwen3moe")  # of docs/support.md
OTHERS = sorted(FIRST.keys() - OPENCL_FAMILIES)
BY_NAME = {case.name: case for case in CASES}
PARAMETERS = [*COMMON, *(pytest.param(name, marks=pytest.mark.all) for name in (*RARE, *MORE))]


@pytest.fixture(scope="module")
def opencl() -> Iterator[Any]:
    backend = open_available("opencl")
    yield backend
    backend.close()


def continue_greedily(runner: Stepper, ids: list[int]) -> tuple[np.ndarray, list[int]]:
    """Return the logits of a prompt in two chunks, and the tokens that follow."""
    logits = np.concatenate([runner.step([(0, part)])["logits"] for part in (ids[:40], ids[40:])])
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < NEW_TOKENS:
        tokens.append(int(runner.step([(0, tokens[-1:])])["tokens"][0]))
    return logits, tokens


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_family_gives_the_cpus_tokens(
    name: str, opencl: Any, cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    case: Case = BY_NAME[name]
    folder = write_case(tmp_path / "model", case)
    runners = [load(folder, backend, context=CONTEXT, eager=False) for backend in (cpu, opencl)]
    plan = runners[1].plan
    assert plan is not None
    assert plan.fallback_calls == {}
    (expected, tokens), (logits, found) = (continue_greedily(runner, case.ids()) for runner in runners)
    span = float(expected.max() - expected.min())
    assert_close(logits / span, expected / span, "logits")
    assert_like(logits[list(POSITIONS)], reference(case))
    assert found == tokens
    for runner in runners:
        runner.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.all) for name in EAGER])
def test_a_family_is_the_same_eager(name: str, opencl: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    case: Case = BY_NAME[name]
    runner = load(write_case(tmp_path / "model", case), opencl, context=CONTEXT, eager=True)
    logits = np.concatenate([runner.step([(0, part)])["logits"] for part in (case.ids()[:40], case.ids()[40:])])
    assert_like(logits[list(POSITIONS)], reference(case))
    runner.close()


@pytest.mark.all
@pytest.mark.parametrize("family", OTHERS)
def test_other_families_have_gaps(family: str, opencl: Any, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """One whose gaps are filled belongs to OPENCL_FAMILIES."""
    runner = load(write_case(tmp_path / "model", FIRST[family]), opencl, context=CONTEXT, eager=False)
    assert runner.plan is not None
    assert runner.plan.fallback_calls
    runner.close()


@pytest.mark.parametrize(("tiny", "number_format"), [(WIDE, Q8_0), (SUPER, Q4_K)], ids=["Q8_0", "Q4_K"])
def test_a_quantized_file_is_near_the_cpu(
    tiny: Tiny, number_format: type[QuantFormat], opencl: Any, cpu: Any, load: Callable[..., Stepper], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny, matrices=number_format)
    runners = [load(path, backend, context=CONTEXT, eager=False) for backend in (cpu, opencl)]
    expected, found = (runner.logits(tiny.ids(), chunk=23) for runner in runners)
    assert_near_in_nat(found, expected, 0.01, mean=True)
    for runner in runners:
        runner.close()
