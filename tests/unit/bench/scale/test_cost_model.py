"""Durations of steps: rooflines, collectives, pipelines, memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sporelm.bench.scale.cost_model import CostModel, Efficiency, ParallelLayout, StepLoad
from sporelm.bench.scale.hardware import MACHINES, Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import RequestError

LINK = Link("test", 1e-5, 1e9)
PROCESSOR = Processor("test", 16e9, 100e9, {"f32": 1e12, "f16": 2e12, "int8": 4e12})
MACHINE = Machine("test", PROCESSOR, 8, LINK, LINK)
SIZE = ModelSize.from_shape("llama-1b", "q4_0")
PERFECT = Efficiency(1, 1, 1, 1, 1, 1e-12, 1e-15, 1e-15, 1e-15)


def cost_model(tp: int = 1, pp: int = 1, micro_batches: int = 1, **changes) -> CostModel:
    return CostModel(SIZE, MACHINE, ParallelLayout(tp, pp, micro_batches), **changes)


def test_decoding_reads_all_weights_once() -> None:
    time = cost_model(efficiency=PERFECT).step(StepLoad.decode(1, 0))
    assert time.parts["weights"] == pytest.approx(SIZE.weight_bytes / 100e9)
    assert time.parts["kv"] == pytest.approx(SIZE.kv_bytes / 100e9)


def test_a_prompt_multiplies_each_token_with_all_layers() -> None:
    time = cost_model(efficiency=PERFECT).step(StepLoad.prefill(512))
    layers = SIZE.layers * (SIZE.attention_values + SIZE.ffn_values)
    assert time.parts["products"] == pytest.approx(2 * 512 * layers / 4e12, rel=1e-6)
    assert time.parts["attention"] == pytest.approx(4 * 512 * 513 / 2 * SIZE.query_width * SIZE.layers / 1e12)


def test_serial_parts_of_the_shorter_one_count() -> None:
    half = replace(PERFECT, serial=0.5)
    load = StepLoad.decode(1, 100)
    faster, slower = (cost_model(efficiency=each).step(load) for each in (PERFECT, half))
    assert slower.parts["weights"] == faster.parts["weights"]
    assert slower.parts["products"] > 0.4 * 2 * SIZE.num_values / 4e12


@given(st.integers(1, 64), st.integers(0, 4000))
def test_more_work_takes_longer(batch: int, context: int) -> None:
    model = cost_model()
    seconds = model.step(StepLoad.decode(batch, context)).seconds
    assert model.step(StepLoad.decode(batch + 1, context)).seconds > seconds
    assert model.step(StepLoad.decode(batch, context + 64)).seconds > seconds


def test_ranks_divide_weights_and_pay_for_links() -> None:
    load = StepLoad.decode(4, 200)
    one, four = cost_model().step(load), cost_model(4).step(load)
    assert one.parts["links"] == 0
    assert four.parts["weights"] == pytest.approx(one.parts["weights"] / 4)
    messages = 2 * SIZE.layers * LINK.all_reduce(4 * SIZE.width * 4, 4) + LINK.all_gather(8 * 4, 4)
    assert four.parts["links"] == pytest.approx(messages)


def test_key_heads_are_whole() -> None:
    wide = cost_model(16)  # of 8 key heads: two ranks hold each
    assert wide._key_share() == 1 / 8
    assert cost_model(3)._key_share() == 3 / 8


def test_groups_without_a_library_gather() -> None:
    load = StepLoad.decode(64, 200)
    assert cost_model(4, all_reduce="gather").step(load).parts["links"] > cost_model(4).step(load).parts["links"]


def test_a_group_over_machines_uses_the_network() -> None:
    slow = replace(MACHINE, num_processors=2, network=Link("slow", 1e-3, 1e9))
    near = CostModel(SIZE, slow, ParallelLayout(2)).step(StepLoad.decode(1, 0))
    far = CostModel(SIZE, slow, ParallelLayout(4)).step(StepLoad.decode(1, 0))
    assert far.parts["links"] > 2 * SIZE.layers * 1e-3 > near.parts["links"]


def test_a_pipeline_fills_and_drains() -> None:
    load = StepLoad.decode(8, 200)
    whole, cut = cost_model(pp=4).step(load), cost_model(pp=4, micro_batches=4).step(load)
    assert whole.parts["bubble"] > cut.parts["bubble"]
    one = cost_model().step(load)
    assert whole.seconds == pytest.approx(one.seconds, rel=0.05)  # one batch passes all stages, one after the other
    assert cut.seconds > 1.3 * whole.seconds  # each micro-batch reads the weights again
    prompt = StepLoad.prefill(2048)
    assert cost_model(pp=4, micro_batches=4).step(prompt).seconds < 0.6 * cost_model(pp=4).step(prompt).seconds


def test_a_prompt_is_computed_in_chunks() -> None:
    model = cost_model()
    assert model.prompt(512, 512).seconds == pytest.approx(model.step(StepLoad.prefill(512)).seconds)
    assert model.prompt(513, 512).seconds > model.prompt(512, 512).seconds
    parts = model.step(StepLoad.prefill(512, 0, 0)).seconds + model.step(StepLoad.prefill(100, 512)).seconds
    assert model.prompt(612, 512).seconds == pytest.approx(parts)


def test_the_load_of_a_step() -> None:
    decoding = ScheduledSequence(1, [5], 100, (0, 1), 1)
    prompt = ScheduledSequence(2, [5] * 10, 20, (2,), 0)
    load = StepLoad.from_step(Step([decoding, prompt], []))
    decode, prefill = StepLoad.decode(1, 100), StepLoad.prefill(10, 20, 0)
    assert load.num_tokens == 11
    assert load.num_outputs == 1
    assert load.pairs == decode.pairs + prefill.pairs
    assert load.read_positions == decode.read_positions + prefill.read_positions


def test_experts_that_no_token_selects_are_not_read() -> None:
    model = CostModel(ModelSize.from_shape("qwen3-30b-a3b", "q4_0"), MACHINE, efficiency=PERFECT)
    one, many = (model.step(StepLoad.decode(batch, 0)).parts["weights"] for batch in (1, 64))
    assert many > 5 * one


def test_pages_fill_the_memory_that_weights_leave() -> None:
    whole, half = cost_model().num_pages(64), cost_model(2).num_pages(64)
    position = SIZE.kv_bytes * 64
    assert whole == pytest.approx(
        (0.9 * 16e9 - SIZE.weight_bytes - SIZE.output_values * SIZE.value_bytes) / position, 1
    )
    assert half > 2 * whole
    with pytest.raises(RequestError, match="the weights do not fit"):
        CostModel(ModelSize.from_shape("llama-70b", "f16"), MACHINE).num_pages(64)


def test_machines_of_a_replica() -> None:
    assert CostModel(SIZE, MACHINES["8xh100"], ParallelLayout(8)).num_machines == 1
    assert CostModel(SIZE, MACHINES["2xepyc"], ParallelLayout(2, 4)).num_machines == 4


def test_values_of_an_efficiency_file_are_checked() -> None:
    assert Efficiency.from_json(PERFECT.to_json()) == PERFECT
    for wrong in ({"speed": 1.0}, {"compute": 0}, {"compute": "fast"}, {"compute": True}):
        with pytest.raises(RequestError, match="unknown value"):
            Efficiency.from_json(wrong)
    with pytest.raises(RequestError, match="tp: too small"):
        ParallelLayout(0)
