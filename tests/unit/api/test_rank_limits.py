"""Limits of an engine by the memory of each rank, not by that of a model on one device."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sporelm.api import rank_limits
from sporelm.api.engine_limits import choose_limits
from sporelm.api.engine_loader import EngineOptions
from sporelm.api.model_loader import ModelLoader
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_limits import choose_rank_limits
from sporelm.backends.backend_registry import open_backend
from sporelm.checkpoints import open_model
from sporelm.errors import RequestError
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
    monkeypatch.setattr(rank_limits, "_memory_of", lambda options, model, rank: f"gpu {rank}")
    monkeypatch.setattr(rank_limits, "_available", lambda key, options, model: room)
    limits = choose_rank_limits(options(tp=4), model, None)
    local_page = model.page_bytes // 2  # KV heads are copied to the ranks that share them
    assert 0 < limits.num_pages * local_page // 2 <= room
    twice = room * 2
    monkeypatch.setattr(rank_limits, "_available", lambda key, options, model: twice)
    assert choose_rank_limits(options(tp=4), model, None).num_pages > limits.num_pages


def test_the_smallest_memory_decides(model: ModelLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_limits, "_memory_of", lambda options, model, rank: f"gpu {rank}")
    sizes = {"gpu 0": model.nbytes * 4, "gpu 1": model.nbytes * 2}
    monkeypatch.setattr(rank_limits, "_available", lambda key, options, model: sizes[key])
    uneven = choose_rank_limits(options(tp=2), model, None)
    sizes["gpu 0"] = sizes["gpu 1"]
    assert choose_rank_limits(options(tp=2), model, None).num_pages == uneven.num_pages


def test_memories_are_told_apart(model: ModelLoader, tmp_path: Path) -> None:
    remote = replace(
        options(), parallel=ParallelOptions(tp=3, remote_ranks=1, rank_devices=("cpu", "torch@cuda:1", "cpu"))
    )
    names = [rank_limits._memory_of(remote, model, rank) for rank in range(3)]
    assert names == ["host", "torch cuda:1", "the host of rank 2"]
    assert [rank_limits._available(name, remote, model) for name in names[1:]] == [None, None]


def test_experts_that_a_model_lacks_cannot_be_divided(model: ModelLoader) -> None:
    with pytest.raises(RequestError, match=r"the option ep: .* has no experts"):
        choose_rank_limits(options(tp=2, ep=True), model, None)
