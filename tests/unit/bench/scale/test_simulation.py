"""The scheduler under simulated time."""

import math

import pytest

from sporelm.bench.scale.cost_model import CostModel, Efficiency, ParallelLayout, StepLoad
from sporelm.bench.scale.hardware import Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.request_trace import TracedRequest
from sporelm.bench.scale.simulation import Simulation, SimulationResult, make_limits, percentile
from sporelm.engine.engine_config import EngineConfig

LINK = Link("test", 1e-5, 1e9)
MACHINE = Machine("test", Processor("test", 16e9, 60e9, {"f32": 2.3e11, "f16": 2.3e11, "int8": 9e11}), 1, LINK, LINK)
MODEL = CostModel(ModelSize.from_shape("llama-1b", "q4_0"), MACHINE, ParallelLayout(), Efficiency())


def simulate(requests: list[TracedRequest], limits: EngineConfig | None = None, **options) -> SimulationResult:
    limits = limits or make_limits(MODEL, max_batch=4, token_budget=512, max_context=1024)
    return Simulation(MODEL, limits).run(requests, **options)


def test_one_request_takes_its_prompt_and_its_steps() -> None:
    result = simulate([TracedRequest(2.0, 100, 5)])
    (request,) = result.requests
    first = MODEL.step(StepLoad.prefill(100)).seconds
    assert request.time_to_first_token == pytest.approx(first)
    decoding = sum(MODEL.step(StepLoad.decode(1, 100 + step)).seconds for step in range(4))
    assert request.last_token_seconds - request.first_token_seconds == pytest.approx(decoding)
    assert request.tokens_per_second == pytest.approx(4 / decoding)
    assert result.seconds == pytest.approx(2 + first + decoding)
    assert (result.num_prompt_tokens, result.num_output_tokens, result.num_steps) == (100, 5, 5)
    assert sum(result.part_seconds.values()) == pytest.approx(result.busy_seconds)


def test_requests_share_steps() -> None:
    alone = simulate([TracedRequest(0, 100, 50)])
    together = simulate([TracedRequest(0, 100, 50) for _ in range(4)])
    assert together.max_running == 4
    assert alone.busy_seconds < together.busy_seconds < 3 * alone.busy_seconds
    assert all(each.is_finished for each in together.requests)


def test_those_beyond_the_batch_wait() -> None:
    result = simulate([TracedRequest(0, 100, 50) for _ in range(8)])
    assert (result.max_running, result.max_waiting) == (4, 4)
    assert result.num_batch_stalls > 0
    assert result.queue_percentile(0) == 0
    assert result.queue_percentile(99) > 0


def test_pages_that_run_out_make_requests_wait() -> None:
    limits = EngineConfig(1024, 1024, 32_768, 512, 4, num_pages=20)
    result = simulate([TracedRequest(0, 600, 100) for _ in range(4)], limits)
    assert all(each.is_finished for each in result.requests)
    assert result.num_page_stalls > 0
    assert result.max_page_share > 0.9


def test_a_shared_beginning_is_computed_once() -> None:
    own = simulate([TracedRequest(number, 300, 4) for number in range(3)])
    shared = simulate([TracedRequest(number, 300, 4, 256) for number in range(3)])
    assert own.num_prompt_tokens == 900
    assert shared.num_prompt_tokens == 900 - 2 * 256


def test_prompts_wait_while_others_decode() -> None:
    answers = [TracedRequest(0, 16, 300) for _ in range(2)]
    result = simulate([*answers, TracedRequest(1, 900, 2)])
    assert result.num_prefill_stalls > 0 == simulate([TracedRequest(0, 500, 300)]).num_prefill_stalls


def test_a_full_queue_refuses() -> None:
    limits = make_limits(MODEL, max_batch=1, token_budget=512, max_context=1024, max_waiting=2)
    result = simulate([TracedRequest(0, 100, 50) for _ in range(9)], limits)
    assert sum(each.is_refused for each in result.requests) > 0
    assert result.is_overloaded
    assert math.isinf(result.first_token_percentile(99))


def test_the_simulation_ends_in_time() -> None:
    result = simulate([TracedRequest(0, 100, 900)], max_seconds=0.5)
    assert result.is_overloaded
    assert result.seconds == pytest.approx(0.5, abs=0.1)


def test_the_warmup_does_not_count() -> None:
    result = simulate([TracedRequest(0, 100, 5), TracedRequest(10, 100, 7)], warmup_seconds=5)
    assert [each.traced.output_tokens for each in result.counted] == [7]
    assert len(result.inter_token_seconds) == 6


def test_figures_of_a_row() -> None:
    values = simulate([TracedRequest(0, 100, 5)]).to_json()
    assert values["finished"] == 1
    assert values["preemptions"] == 0
    assert values["ttft_s"]["p50"] == values["ttft_s"]["p99"] > 0
    assert sum(values["spent"].values()) == pytest.approx(1)


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentile([1.0, float("inf")], 99) == float("inf")
    assert math.isnan(percentile([], 50))
