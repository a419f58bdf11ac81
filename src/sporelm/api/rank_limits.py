"""The limits of an engine whose model is divided over several ranks: what the memory of each rank allows."""

from typing import TYPE_CHECKING, NamedTuple

from sporelm.api.draft_model import count_draft_states
from sporelm.api.engine_limits import MemoryPool, choose_pool_limits
from sporelm.api.model_loader import ModelLoader
from sporelm.api.rank_footprint import check_experts, measure_rank
from sporelm.backends.backend_registry import HOST_BACKENDS
from sporelm.backends.memory_residency import available_bytes, available_on
from sporelm.engine import EngineConfig

if TYPE_CHECKING:
    from sporelm.api.engine_loader import EngineOptions


class RankMemory(NamedTuple):
    """The memory in which a rank has its weights and caches. Ranks with equal ones share it.

    backend, device   of a device with memory of its own; "": the memory of a host
    remote_rank       the rank that has this memory on another host; None: it is of this host
    """

    backend: str = ""
    device: str = ""
    remote_rank: int | None = None

    @classmethod
    def of_device(cls, backend: str, device: str) -> "RankMemory":
        """Return the memory of a back-end's device; "cuda" and "cuda:0" are the same one."""
        kind, _, number = device.partition(":")
        if backend in HOST_BACKENDS or kind == "cpu":
            return cls()
        return cls(backend, f"{kind}:{int(number or 0)}" if not number or number.isdecimal() else device)

    def __str__(self) -> str:
        if self.remote_rank is not None:
            return f"the host of rank {self.remote_rank}"
        return f"{self.backend} {self.device}" if self.backend else "host"


def choose_rank_limits(options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None) -> EngineConfig:
    """Choose the engine's limits by the memory that the weights of each rank leave on its device.

    Ranks of one memory share it. The memory of other hosts is unknown, and that of devices of another back-end than
    rank 0's: a rank that does not fit there raises its own error. Raises MemoryShortage, UnsupportedModel.
    """
    config = options.parallel.config
    check_experts(model, config)
    plan = model.plan_sharding(config)
    token_budget = options.token_budget or max(model.backend.step_buckets.values())
    pools: dict[RankMemory, MemoryPool] = {}
    for rank in range(config.size):
        footprint = measure_rank(model, plan, config, rank)
        page_bytes, state_bytes = footprint.page_bytes, footprint.state_bytes
        taken, draft_bytes = footprint.weight_bytes + model.step_bytes(token_budget), 0
        if model.backend.traits.input_buckets is not None:  # the page and the state of padded rows
            taken += page_bytes + state_bytes
        if rank == 0 and draft is not None:
            taken += draft.nbytes + draft.step_bytes(token_budget)
            draft_bytes = draft.state_bytes * count_draft_states(draft, options.batch_limit)
            page_bytes += draft.page_bytes
        own = _memory_of(options, model, rank)
        before = pools.get(own) or MemoryPool(_available(own, model), 0, 0, 0, model.backend.traits.memory_share)
        pools[own] = before._replace(
            available=None if before.available is None else max(0, before.available - taken),
            page_bytes=before.page_bytes + page_bytes,
            state_bytes=before.state_bytes + state_bytes,
            draft_bytes=before.draft_bytes + draft_bytes,
        )
    return choose_pool_limits(options, model, list(pools.values()), list(map(str, pools)), token_budget)


def _memory_of(options: "EngineOptions", model: ModelLoader, rank: int) -> RankMemory:
    if rank >= options.parallel.num_local:
        return RankMemory(remote_rank=rank)
    devices = options.parallel.devices
    return RankMemory.of_device(*(devices[rank] if devices else (model.backend.name, options.device)))


def _available(memory: RankMemory, model: ModelLoader) -> int | None:
    """Return the free bytes of a memory; None if they are unknown. Devices of one back-end are taken to be alike."""
    if memory.remote_rank is not None:
        return None
    if not memory.backend:
        return available_bytes()
    return available_on(model.backend) if memory.backend == model.backend.name else None
