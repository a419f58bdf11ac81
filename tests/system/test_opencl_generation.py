"""Whole models on the OpenCL back-end give the CPU's greedy tokens."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from close import assert_near_in_nat
from sporelm import LLM, SamplingParams
from sporelm.errors import BackendError
from system.processes import list_ranks

OPTIONS = {"max_context": 512, "max_batch": 4}
PROMPTS = ["Once upon a time", "The dog", "Lily and Tom were playing in the park. They", "One day, a big cat " * 5]


@pytest.fixture(scope="module")
def llm(story: Path) -> Iterator[LLM]:
    open_available("opencl").close()
    with LLM(story, backend="opencl", **OPTIONS) as opened:
        yield opened


def test_prompts_of_a_batch_give_the_tokens_of_the_cpu(llm: LLM, story: Path) -> None:
    params = SamplingParams(max_tokens=60, temperature=0.0)
    with LLM(story, backend="cpu", **OPTIONS) as cpu:
        expected = [each.token_ids for each in cpu.generate(PROMPTS, params)]
    assert [each.token_ids for each in llm.generate(PROMPTS, params)] == expected


def test_a_chunked_prompt_has_the_logits_of_the_cpu(llm: LLM, story: Path) -> None:
    ids = np.random.default_rng(0).integers(3, 1500, 500).tolist()
    with LLM(story, backend="cpu", **OPTIONS) as cpu:
        expected = cpu.logits(ids)
    np.testing.assert_allclose(llm.logits(ids), expected, rtol=0, atol=2e-4)


def test_a_device_that_is_lost_in_a_step_leaves_other_models_and_later_steps(
    llm: LLM, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one line; the other model goes on, and so does this one once the device is back."""
    from sporelm.backends.opencl import opencl_program

    params = SamplingParams(max_tokens=8, temperature=0.0)
    expected = llm.generate("The dog", params)[0].token_ids

    def fail(*arguments: Any) -> None:
        raise opencl_program.cl.RuntimeError("clEnqueueNDRangeKernel failed: DEVICE_NOT_AVAILABLE")

    with LLM(story, backend="opencl", **OPTIONS) as other:
        other.generate("The dog", params)
        with monkeypatch.context() as patched:
            patched.setattr(opencl_program.cl, "enqueue_nd_range_kernel", fail)
            with pytest.raises(
                BackendError, match=r"device 0: .* failed: .*DEVICE_NOT_AVAILABLE. Load the model again"
            ):
                other.generate("The dog", params)
        assert llm.generate("The dog", params)[0].token_ids == expected
        assert other.generate("The dog", params)[0].token_ids == expected


def test_ranks_on_one_device_give_the_tokens_of_one(llm: LLM, story: Path) -> None:
    params = SamplingParams(max_tokens=16, temperature=0.0)
    expected = llm.generate("The dog", params)[0].token_ids
    with LLM(story, backend="opencl", tp=2, rank_executor="threads", **OPTIONS) as ranks:
        assert ranks.generate("The dog", params)[0].token_ids == expected


@pytest.mark.all
def test_a_driver_that_ends_a_ranks_process_restarts_the_ranks(llm: LLM, story: Path) -> None:
    """The request in flight is computed again."""
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    expected = llm.generate("The dog", params)[0].token_ids
    with LLM(story, backend="opencl", tp=2, rank_executor="processes", **OPTIONS) as ranks:
        (number,) = list_ranks()
        pieces = ranks.stream("The dog", params)
        found = list(next(pieces).token_ids)
        os.kill(number, signal.SIGKILL)  # a compiler inside the driver may handle other signals
        found += [token for piece in pieces for token in piece.token_ids]
        assert found == expected
        assert list_ranks() != [number]


@pytest.mark.all
def test_smollm2_is_near_the_cpu(smollm2: Path) -> None:
    """Within what rounding single activations to int8 the other way changes."""
    open_available("opencl").close()
    ids = np.random.default_rng(0).integers(3, 40000, 500).tolist()
    rows = []
    for backend in ("cpu", "opencl"):
        with LLM(smollm2, backend=backend, **OPTIONS) as opened:
            rows.append(opened.logits(ids))
    assert_near_in_nat(rows[1], rows[0], 0.01, mean=True)
