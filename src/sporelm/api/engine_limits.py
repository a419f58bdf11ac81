"""The limits of an engine: the context, pages and recurrent states that the memory beside the weights allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sporelm.api.device_split import DeviceSplit
from sporelm.api.draft_model import count_draft_states
from sporelm.api.model_loader import ModelLoader
from sporelm.backends.backend_parts import parts_of
from sporelm.backends.cpu_offload import DEVICE, HOST
from sporelm.backends.memory_residency import available_on
from sporelm.engine import EngineConfig
from sporelm.engine.capacity import choose, choose_states, snapshot_interval
from sporelm.errors import MemoryShortage
from sporelm.units import in_units

if TYPE_CHECKING:
    from sporelm.api.engine_loader import EngineOptions


def choose_limits(options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None) -> EngineConfig:
    """Choose the engine's limits by the memory that the weights leave. Each page of the model has one of the draft
    model beside it."""
    backend = model.backend
    loaders = [loader for loader in (model, draft) if loader is not None]
    available, share = available_on(backend), backend.traits.memory_share
    if options.device_bytes is not None:
        available = options.device_bytes if available is None else min(available, options.device_bytes)
        share = 1.0  # of what the user has set aside
    weight_bytes = sum(loader.nbytes for loader in loaders)
    # Weights that do not fit raise their own error when they are loaded.
    free = None if available is None or available < weight_bytes else available - weight_bytes
    max_step_tokens = max(backend.step_buckets.values())
    token_budget = options.token_budget or max_step_tokens
    if free is not None:
        draft_step_bytes = draft.step_bytes(max_step_tokens) if draft is not None else 0
        free = max(0, free - model.step_bytes(token_budget) - draft_step_bytes)
        if backend.traits.input_buckets is not None:  # the page and the state of padded rows
            free = max(0, free - sum(loader.page_bytes + loader.state_bytes for loader in loaders))
    page_bytes = sum(loader.page_bytes for loader in loaders)
    cache_bytes = options.kv_bytes
    num_states, state_bytes = _choose_num_states(options, model, draft, free, share)
    if options.num_pages is not None:
        recorded_bytes = options.num_pages * page_bytes + state_bytes
        cache_bytes = recorded_bytes if free is None else min(recorded_bytes, free)
    model_context = model.config.context_length
    max_context, num_pages = choose(
        options.max_context,
        model_context,
        options.batch_limit,
        page_bytes,
        free,
        cache_bytes,
        state_bytes,
        share,
    )
    return EngineConfig(
        max_context=max_context,
        model_context=model_context,
        vocab=model.config.vocab,
        token_budget=token_budget,
        max_batch=options.batch_limit,
        num_pages=num_pages,
        num_states=num_states,
        state_interval=snapshot_interval(model.state_bytes, model.page_bytes) if num_states else 0,
    )


def _choose_num_states(
    options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None, free: int | None, share: float
) -> tuple[int, int]:
    """Return the number of recurrent states of the model, and the bytes of its and the draft model's states."""
    budget = options.kv_bytes
    if budget is None and free is not None:
        budget = int(free * share)
    draft_bytes = draft.state_bytes * count_draft_states(draft, options.batch_limit) if draft is not None else 0
    if options.num_states is not None and model.state_bytes:
        num_states = options.num_states
    else:
        shares_memory = bool(model.page_bytes or (draft is not None and draft.page_bytes))
        rest = None if budget is None else budget - draft_bytes
        num_states = choose_states(model.state_bytes, rest, options.batch_limit, shared=shares_memory)
    return num_states, draft_bytes + num_states * model.state_bytes


class MemoryPool(NamedTuple):
    """The memory of one part of a back-end, for caches.

    available    bytes beside the weights and a step; None: unknown
    page_bytes   of the caches of pages on it, those of a draft model included
    state_bytes  of the recurrent states on it
    draft_bytes  of the draft model's recurrent states
    share        the part of the available memory that caches may take
    """

    available: int | None
    page_bytes: int
    state_bytes: int
    draft_bytes: int
    share: float


def choose_split_limits(
    options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None, split: DeviceSplit
) -> EngineConfig:
    """Choose the engine's limits for a model on two parts: what both memories allow."""
    max_step_tokens = max(model.backend.step_buckets.values())
    token_budget = options.token_budget or max_step_tokens
    pools = [_pool(options, model, draft, split, part, token_budget) for part in (DEVICE, HOST)]
    return choose_pool_limits(options, model, pools, (split.device, "cpu"), token_budget)


def choose_pool_limits(
    options: "EngineOptions", model: ModelLoader, pools: Sequence[MemoryPool], titles: Sequence[str], token_budget: int
) -> EngineConfig:
    """Choose the engine's limits for caches in several memories: what all of them allow. Raises MemoryShortage."""
    page_bytes, state_bytes = sum(pool.page_bytes for pool in pools), sum(pool.state_bytes for pool in pools)
    draft_bytes = sum(pool.draft_bytes for pool in pools)
    cache_bytes = options.kv_bytes
    num_states = 0
    if state_bytes:
        rooms = [(pool.state_bytes, _room(pool), bool(pool.page_bytes)) for pool in pools if pool.state_bytes]
        if cache_bytes is not None:
            rooms = [(state_bytes, cache_bytes - draft_bytes, bool(page_bytes))]
        num_states = options.num_states or min(
            choose_states(nbytes, room, options.batch_limit, shared=shared) for nbytes, room, shared in rooms
        )
    beside = [pool.draft_bytes + num_states * pool.state_bytes for pool in pools]
    if options.num_pages is not None:
        cache_bytes = options.num_pages * page_bytes + sum(beside)
    asked, model_context = options.max_context, model.config.context_length
    if cache_bytes is not None:
        given = cache_bytes, sum(beside)
        choices = [choose(asked, model_context, options.batch_limit, page_bytes, None, *given)]
    else:
        choices = [
            choose(asked, model_context, options.batch_limit, pool.page_bytes, pool.available, None, taken, pool.share)
            for pool, taken in zip(pools, beside, strict=True)
        ]
    num_pages = min(pages for _, pages in choices)
    for pool, taken, title in zip(pools, beside, titles, strict=True):
        needed = num_pages * pool.page_bytes + taken
        if pool.available is not None and needed > pool.available:
            raise MemoryShortage(
                f"KV cache: too large for {title} (got {in_units(needed)}; allowed {in_units(pool.available)} beside "
                "the weights). Lower the option kv_memory or max_context."
            )
    return EngineConfig(
        max_context=min(context for context, _ in choices),
        model_context=model_context,
        vocab=model.config.vocab,
        token_budget=token_budget,
        max_batch=options.batch_limit,
        num_pages=num_pages,
        num_states=num_states,
        state_interval=snapshot_interval(state_bytes, model.page_bytes) if num_states else 0,
    )


def _room(pool: MemoryPool) -> int | None:
    """Return the bytes that the recurrent states of a model and its pages may take."""
    return None if pool.available is None else max(0, int(pool.available * pool.share) - pool.draft_bytes)


def _pool(
    options: "EngineOptions",
    model: ModelLoader,
    draft: ModelLoader | None,
    split: DeviceSplit,
    part: int,
    token_budget: int,
) -> MemoryPool:
    loaders = [loader for loader in (model, draft) if loader is not None]
    draft_bytes = draft.state_bytes_by_part[part] * count_draft_states(draft, options.batch_limit) if draft else 0
    page_bytes = sum(loader.page_bytes_by_part[part] for loader in loaders)
    if part == DEVICE:  # the room of a split excludes the draft model and a step
        return MemoryPool(split.room, page_bytes, model.state_bytes_by_part[part], draft_bytes, 1.0)
    backend = parts_of(model.backend)[part]
    available = available_on(backend)
    weight_bytes = sum(loader.weight_bytes_by_part[part] for loader in loaders)
    if available is not None:  # weights that do not fit raise their own error when they are loaded
        step_bytes = sum(loader.step_bytes(token_budget) for loader in loaders)
        available = max(0, available - weight_bytes - step_bytes) if available >= weight_bytes else None
    return MemoryPool(available, page_bytes, model.state_bytes_by_part[part], draft_bytes, backend.traits.memory_share)
