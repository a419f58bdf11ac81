"""Decides whether a model is split between a device and the CPU, and opens the back-end of the split (ADR 0050)."""

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sporelm.api.backend_choice import HOST, label
from sporelm.api.device_split import (
    DeviceBudget,
    DeviceSplit,
    measure_split,
    min_split_bytes,
    place_draft,
    split_model,
)
from sporelm.api.engine_limits import choose_limits
from sporelm.api.model_loader import ModelLoader
from sporelm.backends import cpu_offload
from sporelm.backends.backend_registry import open_backend
from sporelm.backends.cpu_offload import CpuOffloadBackend, shared_buckets
from sporelm.backends.memory_residency import available_on
from sporelm.backends.protocol import Backend
from sporelm.checkpoints.loader import device_shortage
from sporelm.engine.capacity import DEFAULT_CONTEXT, STATES
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import MemoryShortage, RequestError
from sporelm.models import Encoder
from sporelm.ops.paged_attention import PAGE
from sporelm.units import in_units

if TYPE_CHECKING:
    from sporelm.api.engine_loader import EngineOptions


STEP_TOKENS = 512  # of the steps of a device that holds a model only with short steps


class SplitModel(NamedTuple):
    """A model whose files are open, on the back-end of its split, and its draft model on one part of it."""

    split: DeviceSplit
    backend: CpuOffloadBackend
    model: ModelLoader
    draft: ModelLoader | None


def check_device_option(options: "EngineOptions", backend_name: str) -> None:
    """Raise RequestError if a split is asked for on a back-end that has no device beside the host."""
    option = "device_memory" if options.device_memory is not None else "experts_on"
    if options.wants_split and backend_name == HOST:
        raise RequestError(
            f"the option {option}: needs a device beside the CPU (got the back-end 'cpu'; allowed auto, torch, cuda, "
            "...). Set the option backend too, or leave it out."
        )


def split_if_needed(
    options: "EngineOptions",
    model: ModelLoader,
    draft: ModelLoader | None,
    threads: int,
    *,
    device: str,
    measure: bool = True,
) -> SplitModel | None:
    """Return a model split between the device on which `model` and `draft` are opened and the CPU; None if the device
    holds all of it.

    `device` names the device. Raises RequestError for options that do not fit the model or the device, MemoryShortage
    if not one layer fits; with `strict` also if the model does not fit and no option asks for a split.
    """
    if isinstance(model.model, Encoder):
        return None
    backend, place = model.backend, label(model.backend.name, device)
    free = available_on(backend) if options.wants_split else backend.free_bytes()
    if options.experts_on is not None and not model.expert_bytes:
        raise RequestError(
            f"the option experts_on: {model.config.name} has no experts (got {options.experts_on!r}). Leave it out."
        )
    if options.device_bytes is not None and free is not None and options.device_bytes > free:
        raise RequestError(
            f"the option device_memory: more than is free on {place} (got {in_units(options.device_bytes)}; allowed up "
            f"to {in_units(free)}). Give less, or leave it out."
        )
    if free is None and not options.wants_split:
        return None  # its memory is the host's
    if options.experts_on is None:
        try:
            check_fit(options, model, draft)
            return None
        except MemoryShortage as shortage:
            if options.strict and not options.wants_split:
                raise MemoryShortage(f"{shortage}; or leave out the option strict, and the model is split") from None
    host = open_backend(HOST, threads=threads, shares_arena=True)
    host.strict = options.strict
    try:
        budget = make_budget(options, model, host, free)
        return _split(options, model, draft, host, budget, place, measure=measure)
    except BaseException:
        host.close()
        raise


def shorten_steps(
    options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None
) -> tuple["EngineOptions", str]:
    """Return the options, with steps of STEP_TOKENS if the device holds the whole model with these alone, and a note
    for the user then. Shorter steps cost less than a split."""
    has_memory = model.backend.free_bytes() is not None or options.device_bytes is not None
    max_step_tokens = max(model.backend.step_buckets.values())
    is_fixed = options.token_budget is not None or max_step_tokens <= STEP_TOKENS
    if isinstance(model.model, Encoder) or options.experts_on is not None or is_fixed or not has_memory:
        return options, ""
    shorter = replace(options, token_budget=STEP_TOKENS)
    note = f"steps have {STEP_TOKENS} tokens at most: the device does not hold the model beside {max_step_tokens}"
    for each, text in ((options, ""), (shorter, note)):
        try:
            check_fit(each, model, draft)
            return each, text
        except MemoryShortage:
            continue
    return options, ""


def check_fit(options: "EngineOptions", model: ModelLoader, draft: ModelLoader | None) -> None:
    """Raise MemoryShortage unless the device, or the part of it that device_memory gives, holds a model."""
    available = available_on(model.backend)
    if options.device_bytes is not None:
        available = options.device_bytes if available is None else min(available, options.device_bytes)
    needed = model.nbytes + (draft.nbytes if draft is not None else 0)
    if available is not None and needed > available:
        raise device_shortage(model.source, needed, available)
    choose_limits(options, model, draft)


def make_budget(options: "EngineOptions", model: ModelLoader, host: Backend, free: int | None) -> DeviceBudget:
    """Return the memory of the device, and the caches of one context or of the options."""
    nbytes = options.device_bytes
    if nbytes is None and model.backend.free_bytes() is not None:
        assert free is not None
        nbytes = int(free * model.backend.traits.memory_share)
    context = options.max_context or min(model.config.context_length, DEFAULT_CONTEXT)
    num_pages = count_pages(context)
    if options.kv_bytes is not None and model.page_bytes:
        num_pages = max(1, options.kv_bytes // model.page_bytes)
    return DeviceBudget(
        nbytes,
        options.num_pages or num_pages,
        options.num_states or STATES,
        options.token_budget or max(shared_buckets(model.backend, host).values()),
        context,
    )


def split_mixture(model: ModelLoader, host: Backend, budget: DeviceBudget, device: str) -> DeviceSplit:
    """Return the split by layers, or with experts on the host if the host has less to read for a token then."""
    splits = [split_model(model, host, budget, device, experts_on_host=on_host) for on_host in (False, True)]
    return min(splits, key=lambda split: split.device_map.read_bytes[cpu_offload.HOST])


def preview_split(model: ModelLoader, threads: int, nbytes: int, num_pages: int) -> DeviceSplit:
    """Return the split of a model with `nbytes` of the device on which it is opened, and a cache of `num_pages`."""
    with closing(open_backend(HOST, threads=threads)) as host:
        num_tokens = max(shared_buckets(model.backend, host).values())
        budget = DeviceBudget(nbytes, num_pages, STATES, num_tokens, num_pages * PAGE)
        make_split = split_mixture if model.expert_bytes else split_model
        return make_split(model, host, budget, model.backend.name)


def measure_host_rate(threads: int) -> float:
    """Return the bytes per second that the CPU reads."""
    with closing(open_backend(HOST, threads=threads)) as host:
        return host.measure_limits()["stream_bytes_s"]


def _split(
    options: "EngineOptions",
    model: ModelLoader,
    draft: ModelLoader | None,
    host: Backend,
    budget: DeviceBudget,
    place: str,
    *,
    measure: bool,
) -> SplitModel:
    experts_on_host = options.experts_on is not None
    make_split = partial(split_model, model, host, device=place, experts_on_host=experts_on_host)
    if not options.wants_split and model.expert_bytes:
        make_split = partial(split_mixture, model, host, device=place)
    split, draft_part = make_split(budget), cpu_offload.HOST
    if options.device_bytes is not None and not split.layers:
        needed = min_split_bytes(model, host, budget, experts_on_host=experts_on_host)
        raise MemoryShortage(
            "the option device_memory: too small for one layer, its KV cache and a step (got "
            f"{in_units(options.device_bytes)}; allowed {in_units(needed)} or more). Give more, lower the option "
            "max_context, or set the option backend to cpu."
        )
    if draft is not None:  # on the device, if a layer of the model has room beside it
        beside = draft.nbytes + budget.num_pages * draft.page_bytes + draft.step_bytes(budget.num_tokens)
        beside += draft.state_bytes * 3 * options.batch_limit
        smaller = replace(budget, nbytes=None if budget.nbytes is None else max(0, budget.nbytes - beside))
        if (with_draft := make_split(smaller)).layers:
            split, draft_part = with_draft, cpu_offload.DEVICE
    if measure:
        split = measure_split(split, model.backend, host)
    composite = CpuOffloadBackend(model.backend, host, split.device_map)
    on_split = ModelLoader(model.source, composite, options.kv, dequantize=model.dequantize)
    if draft is not None:
        part = place_draft(draft, composite, draft_part)
        draft = ModelLoader(draft.source, part, options.kv, dequantize=draft.dequantize)
    return SplitModel(split, composite, on_split, draft)
