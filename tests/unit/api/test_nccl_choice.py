"""NCCL for ranks with a GPU each, with stand-ins for NCCL: two cards are not at hand."""

from pathlib import Path
from typing import Any

import pytest

from sporelm import settings
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_opening import GroupSpec, RankOptions, join_groups
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.engine import EngineConfig

LIMITS = EngineConfig(num_pages=2, max_batch=1, token_budget=8, max_context=64, model_context=64, vocab=10)
GPUS = ("cuda@cuda:0", "torch@cuda:1")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tp": 2, "rank_devices": GPUS}, True),
        ({"tp": 2}, False),
        ({"tp": 2, "rank_devices": ("cuda@cuda:0", "cuda@cuda:0")}, False),
        ({"tp": 2, "rank_devices": ("cuda@cuda:0", "cpu")}, False),
        ({"tp": 2, "rank_devices": GPUS, "rank_executor": "threads"}, False),
        ({"tp": 2, "rank_devices": GPUS, "remote_ranks": 1}, False),
        ({"pp": 2, "rank_devices": GPUS}, False),
    ],
)
def test_nccl_needs_the_setting_and_a_gpu_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: bool
) -> None:
    monkeypatch.setitem(vars(settings.NCCL), "value", "")
    assert not ParallelOptions(**options).uses_nccl
    monkeypatch.setitem(vars(settings.NCCL), "value", "yes")
    assert ParallelOptions(**options).uses_nccl == expected


class StandIn:
    """ProcessGroupNCCL, as far as a group uses it."""

    Options = dict
    log: list[Any] = []

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        store.set(f"rank{rank}", b"here")
        self.log.append((rank, size))

    def allreduce(self, tensors: list[Any]) -> Any:
        self.log.append(("allreduce", len(tensors)))
        return self

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        """Return: the exchange has ended."""

    def abort(self) -> None:
        self.log.append("abort")


def test_ranks_join_nccl_within_their_stage_and_shared_memory_between_stages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(StandIn, "log", [])
    SharedMemoryGroup.create_file(tmp_path / "world", 4, has_slots=False, stride=2)
    spec = GroupSpec("nccl", str(tmp_path / "stage1"), str(tmp_path / "world"))
    options = RankOptions(
        "model", "", "torch", "meta", "auto", 1, False, False, "f32", False, False, LIMITS, ParallelConfig(2, 2), 3,
        spec, [],
    )  # fmt: skip
    groups = join_groups(options)
    assert (groups.stage.rank, groups.stage.size, groups.stage.is_on_device) == (1, 2, True)
    assert (groups.world.rank, groups.world.size) == (3, 4)
    groups.abort()
    groups.close()
    assert StandIn.log[:3] == [(1, 2), ("allreduce", 1), "abort"]
