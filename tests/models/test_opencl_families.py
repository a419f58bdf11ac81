"""Tiny models of some families on the OpenCL back-end against the CPU: logits in chunks, and the same greedy tokens.

In float32; a quantized file within what rounding single activations to int8 the other way changes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_close, assert_near_in_nat
from families import CASES, Case, write_case
from sporelm.quant import Q4_K, Q8_0, QuantFormat
from stepping import Stepper
from tiny_files import write_gguf
from tiny_models import SUPER, WIDE, Tiny

CONTEXT, NEW_TOKENS = 192, 12
COMMON = ("llama", "qwen2", "gpt2", "mixtral")
RARE = ("qwen3-odd-tied-biases", "gemma2", "phi3", "bloom", "gpt-oss", "qwen2moe", "deepseek", "starcoder2", "falcon")
BY_NAME = {case.name: case for case in CASES}
PARAMETERS = [*COMMON, *(pytest.param(name, marks=pytest.mark.all) for name in RARE)]


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
    assert found == tokens
    for runner in runners:
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
