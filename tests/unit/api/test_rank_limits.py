"""Limits of an engine by the memory of each rank, not by that of a model on one device."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sporelm.api import rank_limits
from sporelm.api.engine_limits import choose_limits
from sporelm.api.engine_loader import EngineOptions
from sporelm.api.model_loader import ModelLoader
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_footprint import measure_rank, summarize_ranks
from sporelm.api.rank_limits import RankMemory, choose_rank_limits
from sporelm.backends.backend_registry import open_backend
from sporelm.checkpoints import open_model
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.errors import RequestError
from sporelm.models.sharded_model import RankPlace
from tiny_files import write_folder
from tiny_models import SUPER


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelLoader]:
    source = open_model(write_folder(tmp_path_factory.mktemp("model") / "folder", SUPER))
    backend = open_backend("cpu", threads=1)
    yield ModelLoader(source, backend, "f16", dequantize=False)
    backend.close()
    source.close()


def options(**parallel: Any) -> EngineOptions:
    return EngineOptions(None, "cpu", "cpu", 1, None, None, False, 16, False, 8, parallel=ParallelOptions(**parallel))


def gpu(number: int) -> RankMemory:
    return RankMemory("cuda", f"cuda:{number}")


def test_ranks_of_one_memory_need_as_much_as_one_worker(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    room = model.nbytes * 3
    monkeypatch.setattr(rank_limits, "available_bytes", lambda: room)
    monkeypatch.setattr("sporelm.api.engine_limits.available_on", lambda backend: room)
    one = choose_limits(options(), model, None)
    for parallel in ({"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2}):
        several = choose_rank_limits(options(**parallel), model, None)
        assert several.max_context == one.max_context
        assert 0.5 * one.num_pages <= several.num_pages <= one.num_pages  # each rank has the values of a step


def test_each_device_holds_its_part(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four devices that each hold a third of the weights: one is too small, four are not."""
    room = model.nbytes // 3 + 2 * model.step_bytes(8)
    monkeypatch.setattr(rank_limits, "_memory_of", lambda options, model, rank: gpu(rank))
    monkeypatch.setattr(rank_limits, "_available", lambda memory, model: room)
    limits = choose_rank_limits(options(tp=4), model, None)
    local_page = model.page_bytes // 2  # KV heads are copied to the ranks that share them
    assert 0 < limits.num_pages * local_page // 2 <= room
    twice = room * 2
    monkeypatch.setattr(rank_limits, "_available", lambda memory, model: twice)
    assert choose_rank_limits(options(tp=4), model, None).num_pages > limits.num_pages


def test_the_smallest_memory_decides(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_limits, "_memory_of", lambda options, model, rank: gpu(rank))
    sizes = {gpu(0): model.nbytes * 4, gpu(1): model.nbytes * 2}
    monkeypatch.setattr(rank_limits, "_available", lambda memory, model: sizes[memory])
    uneven = choose_rank_limits(options(tp=2), model, None)
    sizes[gpu(0)] = sizes[gpu(1)]
    assert choose_rank_limits(options(tp=2), model, None).num_pages == uneven.num_pages


def test_memories_are_told_apart(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_limits, "available_bytes", lambda: 7)
    devices = ("cpu", "torch@cpu", "torch@cuda", "torch@cuda:0", "torch@cuda:1", "cpu")
    remote = replace(options(), parallel=ParallelOptions(tp=6, remote_ranks=1, rank_devices=devices))
    found = [rank_limits._memory_of(remote, model, rank) for rank in range(6)]
    assert found[:2] == [RankMemory()] * 2
    assert found[2] == found[3] == RankMemory("torch", "cuda:0")
    assert len(set(found)) == 4
    assert [str(each) for each in found[3:]] == ["torch cuda:0", "torch cuda:1", "the host of rank 5"]
    # Devices of another back-end than rank 0's, and other hosts, are unknown.
    assert [rank_limits._available(each, model) for each in found] == [7, 7, None, None, None, None]


def test_experts_that_a_model_lacks_cannot_be_divided(model: ModelLoader) -> None:
    with pytest.raises(RequestError, match=r"the option ep: .* has no experts"):
        choose_rank_limits(options(tp=2, ep=True), model, None)


def test_a_model_is_planned_once(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 loads by the plan that its limits were chosen by."""
    chosen = options(tp=2)
    choose_rank_limits(chosen, model, None)
    plan = model.plan_sharding(chosen.parallel.config)
    monkeypatch.setattr("sporelm.models.sharded_model.plan_sharding", None)
    groups = SharedMemoryGroup.create(2)
    place = RankPlace(chosen.parallel.config, 0, groups[0], plan=plan)
    loader = ModelLoader(model.source, model.backend, "f16", dequantize=False, place=place)
    assert loader.model.sharding_plan is plan
    assert loader.nbytes == measure_rank(model, plan, chosen.parallel.config, 0).weight_bytes
    for group in groups:
        group.close()


def test_what_a_rank_holds(model: ModelLoader) -> None:
    config = ParallelConfig(2, 2)
    plan = model.plan_sharding(config)
    ranks = [measure_rank(model, plan, config, rank) for rank in range(4)]
    assert [each.stage for each in ranks] == [0, 0, 1, 1]
    assert ranks[0].layers == ranks[1].layers
    assert ranks[0].layers[1] == ranks[2].layers[0]
    for pair in (ranks[:2], ranks[2:]):
        assert pair[0].replicated == pair[1].replicated
        assert all(each.name not in plan.weights for each in pair[0].replicated)
        assert not any(name.startswith("layers.") for name in pair[0].replicated_bytes)
    twice = sum(sum(each.replicated_bytes.values()) for each in ranks[::2])
    assert 0 < twice < model.nbytes / 2
    # Rows are padded to whole panels on each rank.
    assert sum(each.weight_bytes for each in ranks) - twice == pytest.approx(model.nbytes, rel=0.01)
    assert [each.kv_heads for each in ranks] == [[(1, 2)]] * 4


def test_a_refusal_is_a_summary(model: ModelLoader) -> None:
    found = summarize_ranks(model, ParallelOptions(pp=99), 1, 1, is_split=False)
    assert found is not None
    assert (found["runs"], found["members"]) == (False, [])
    assert "the option pp: more stages than layers (got 99" in found["reason"]
    assert summarize_ranks(model, ParallelOptions(), 1, 1, is_split=False) is None
