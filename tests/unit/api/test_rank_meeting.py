"""Meetings of ranks: groups that connect, and failures that nothing waits for."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from sporelm.api.rank_meeting import RankMeeting, merge_entries
from sporelm.api.rank_opening import GroupSpec, RankOptions
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine import EngineConfig
from sporelm.errors import BackendError, RankLost

LIMITS = EngineConfig(num_pages=2, max_batch=1, token_budget=8, max_context=64, model_context=64, vocab=10)


def options_of(rank: int, pp: int = 1) -> RankOptions:
    parallel = ParallelConfig(2, pp)
    return RankOptions(
        "model", "", "cpu", "cpu", "auto", 1, False, False, "f32", False, False, LIMITS, parallel, rank,
        GroupSpec("torch", "127.0.0.1"), [],
    )  # fmt: skip


def test_ranks_meet_in_their_stage_and_in_the_world() -> None:
    meetings = [RankMeeting(options_of(rank, pp=2), "127.0.0.1") for rank in range(4)]
    entries = merge_entries([each.open_addresses() for each in meetings])
    with ThreadPoolExecutor(4) as threads:
        groups = list(threads.map(lambda each: each.finish(entries), meetings))
    assert [(each.stage.rank, each.stage.size, each.world.rank, each.world.size) for each in groups] == [
        (0, 2, 0, 4), (1, 2, 1, 4), (0, 2, 2, 4), (1, 2, 3, 4)
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as threads:
        one = np.ones(1, np.float32)
        list(threads.map(lambda each: each.world.all_gather(one, [(1,)] * 4), groups))
    for each in groups:
        each.close()


def test_an_address_of_another_host_is_reported_at_once() -> None:
    began = monotonic()
    with pytest.raises(BackendError, match=r"cannot connect at 10\.77\.1\.2"):
        RankMeeting(options_of(0), "10.77.1.2").open_addresses()
    assert monotonic() - began < 20


def test_closing_ends_the_waits() -> None:
    meeting = RankMeeting(options_of(0), "127.0.0.1")
    meeting.open_addresses()
    meeting.close()
    with pytest.raises((BackendError, RankLost)):
        meeting.finish({})


def test_a_failed_start_does_not_delay_the_end_of_the_process() -> None:
    code = f"""
import sys
sys.path[:] = {[path for path in sys.path if path]!r}
from sporelm.api.rank_meeting import RankMeeting
from sporelm.api.rank_opening import RankOptions
options = RankOptions.decode({options_of(0).encode()!r})
print(list(RankMeeting(options, "127.0.0.1").open_addresses()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout == "['stage0']\n", done.stderr
