"""A worker of another host has threads and a back-end of its own."""

from pathlib import Path

import pytest

from sporelm import settings
from sporelm.api.cpu_count import usable_cores
from sporelm.api.host_choices import HostChoices
from sporelm.api.rank_opening import GroupSpec, RankOptions
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine import EngineConfig
from sporelm.errors import RequestError

LIMITS = EngineConfig(num_pages=2, max_batch=1, token_budget=8, max_context=64, vocab=10, model_context=64)
FIRST = RankOptions(
    "model", "", "torch", "cuda:0", "bf16", 64, False, False, "f32", False, False, LIMITS, ParallelConfig(2), 1,
    GroupSpec("torch", ""), [],
)  # fmt: skip


def test_threads_are_those_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(settings.THREADS), "value", "")  # the variable may be set, and may have been read
    assert HostChoices().apply(FIRST).threads == usable_cores()
    assert HostChoices(threads=1).apply(FIRST).threads == 1
    with pytest.raises(RequestError, match="threads"):
        HostChoices(threads=10**6).apply(FIRST)


def test_other_options_are_rank_0s_unless_the_worker_has_its_own() -> None:
    options = HostChoices().apply(FIRST)
    assert (options.path, options.backend, options.device, options.dtype) == ("model", "torch", "cuda:0", "bf16")
    options = HostChoices(Path("here"), backend="cpu").apply(FIRST)
    assert (options.path, options.backend, options.device, options.dtype) == ("here", "cpu", "cpu", "auto")
    options = HostChoices(backend="cuda", device="cuda:1").apply(FIRST)
    assert (options.backend, options.device, options.dtype) == ("cuda", "cuda:1", "bf16")
    with pytest.raises(RequestError, match="the option backend: unknown back-end"):
        HostChoices(backend="auto").check()
