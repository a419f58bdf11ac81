"""The limits of an engine whose model is divided over several ranks: what the memory of each rank allows."""

from typing import TYPE_CHECKING

from sporelm.api.draft_model import count_draft_states
from sporelm.api.engine_limits import MemoryPool, choose_pool_limits
from sporelm.api.model_loader import ModelLoader, packed_sizes
from sporelm.backends.backend_registry import HOST_BACKENDS
from sporelm.backends.memory_residency import available_bytes, available_on
from sporelm.engine import EngineConfig
from sporelm.engine.capacity import page_bytes_by_part, state_bytes_by_part
from sporelm.errors import RequestError
from sporelm.models.sharding_plan import RankWeights, plan_sharding
from sporelm.ops.canonical_pages import KV_TYPES

if TYPE_CHECKING:
    from sporelm.api.engine_loader import EngineOptions

HOST = "host"


def choose_rank_limits(options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None) -> EngineConfig:
    """Choose the engine's limits by the memory that the weights of each rank leave on its device.

    Ranks of one memory share it. The memory of other hosts is unknown, and that of devices of another back-end than
    rank 0's: a rank that does not fit there raises its own error. Raises MemoryShortage, UnsupportedModel.
    """
    config = options.parallel.config
    if config.expert_parallel and not model.expert_bytes:
        raise RequestError(
            f"the option ep: {model.config.name} has no experts (got True; allowed False for it). Leave it out."
        )
    plan = plan_sharding(model.model, model.params, model.formats, config)
    whole = model.model.memory()
    token_budget = options.token_budget or max(model.backend.step_buckets.values())
    pools: dict[str, MemoryPool] = {}
    for rank in range(config.size):
        stage, tp_rank = config.stage(rank), config.tp_rank(rank)
        sizes = packed_sizes(model.formats, model.params, model.backend, RankWeights(plan, stage, tp_rank))
        local = plan.local_memory(whole, tp_rank)
        memory = [local[index] for index in plan.stage_caches[stage]]
        page_bytes = sum(page_bytes_by_part(memory, model.backend, KV_TYPES[model.kv]))
        state_bytes = sum(state_bytes_by_part(memory, model.backend))
        taken, draft_bytes = sum(sizes.values()) + model.step_bytes(token_budget), 0
        if model.backend.traits.input_buckets is not None:  # the page and the state of padded rows
            taken += page_bytes + state_bytes
        if rank == 0 and draft is not None:
            taken += draft.nbytes + draft.step_bytes(token_budget)
            draft_bytes = draft.state_bytes * count_draft_states(draft, options.batch_limit)
            page_bytes += draft.page_bytes
        key = _memory_of(options, model, rank)
        before = pools.get(key) or MemoryPool(
            _available(key, options, model), 0, 0, 0, model.backend.traits.memory_share
        )
        pools[key] = before._replace(
            available=None if before.available is None else max(0, before.available - taken),
            page_bytes=before.page_bytes + page_bytes,
            state_bytes=before.state_bytes + state_bytes,
            draft_bytes=before.draft_bytes + draft_bytes,
        )
    return choose_pool_limits(options, model, list(pools.values()), list(pools), token_budget)


def _memory_of(options: "EngineOptions", model: ModelLoader, rank: int) -> str:
    """Return the name of the memory of a rank."""
    if rank >= options.parallel.num_local:
        return f"the host of rank {rank}"
    devices = options.parallel.devices
    name, device = devices[rank] if devices else (model.backend.name, options.device)
    return HOST if name in HOST_BACKENDS or device.partition(":")[0] == "cpu" else f"{name} {device}"


def _available(key: str, options: "EngineOptions", model: ModelLoader) -> int | None:
    """Return the free bytes of a memory; None if they are unknown."""
    if key == HOST:
        return available_bytes()
    if key.startswith("the host of"):
        return None
    return available_on(model.backend) if key.startswith(f"{model.backend.name} ") else None
