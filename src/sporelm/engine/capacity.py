"""The capacity of an engine: the context, the pages and the recurrent states that the memory allows."""

from collections.abc import Iterable
from typing import Any

from sporelm.backends.protocol import HOST_TRAITS, Backend, CompositeBackend
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import MemoryShortage, RequestError, safe_repr
from sporelm.models.blocks.block_memory import State
from sporelm.models.config import ModelConfig
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import ElementType
from sporelm.units import in_units

DEFAULT_CONTEXT = 8192  # positions, unless asked for more, of models that allow more
SPARE_CONTEXTS = 3  # beyond one for each request that runs: idle conversations keep their KV
MAX_PAGES = 1 << 20  # of a pool whose size is given: the positions of 67 million tokens
STATES = 4  # for each request that runs: its own, two snapshots of its text, one of an idle conversation
MIN_INTERVAL, MAX_INTERVAL = 8, 32  # pages between two state snapshots of a text


def bytes_per_page(memory: Iterable[Any], backend: Backend, kv: ElementType) -> int:
    """Return the bytes of one page in all caches together."""
    return sum(page_bytes_by_part(memory, backend, kv))


def page_bytes_by_part(memory: Iterable[Any], backend: Backend, kv: ElementType) -> list[int]:
    """Return the bytes of one page in all caches of each part of a back-end; of one part if it is not composite."""
    shapes = [each.position_shape for each in memory if not isinstance(each, State)]
    if not isinstance(backend, CompositeBackend):
        return [sum(backend.page_bytes(shape, kv) for shape in shapes)]
    return [
        sum(
            part.page_bytes(shape, kv) for shape, home in zip(shapes, backend.page_parts, strict=True) if home == number
        )
        for number, part in enumerate(backend.parts)
    ]


def bytes_per_state(memory: Iterable[Any], backend: Backend) -> int:
    """Return the bytes of one recurrent state of all layers together; 0 for models without states."""
    return sum(state_bytes_by_part(memory, backend))


def state_bytes_by_part(memory: Iterable[Any], backend: Backend) -> list[int]:
    """Return the bytes of one recurrent state of all layers on each part of a back-end, as `page_bytes_by_part`."""
    layers = [each.shapes for each in memory if isinstance(each, State)]
    if not isinstance(backend, CompositeBackend):
        return [backend.state_bytes(layers)]
    return [
        part.state_bytes([shapes for shapes, home in zip(layers, backend.state_parts, strict=True) if home == number])
        for number, part in enumerate(backend.parts)
    ]


def snapshot_interval(state_bytes: int, page_bytes: int) -> int:
    """Return the pages between two state snapshots of a text.

    They have about a state's bytes, so that snapshots take no more memory than keys and values. The bounds limit how
    much is recomputed.
    """
    if not page_bytes:
        return MAX_INTERVAL
    return min(max(-(-state_bytes // page_bytes), MIN_INTERVAL), MAX_INTERVAL)


def choose_states(state_bytes: int, room: int | None, max_batch: int, *, shared: bool) -> int:
    """Return the number of recurrent states: STATES for each request that runs, if they fit in `room` bytes.

    `shared`: pages need half of the room. Memory is touched state by state as it is used. Returns 0 for models without
    states. Raises MemoryShortage if not one fits.
    """
    if not state_bytes:
        return 0
    wanted = STATES * max_batch
    if room is None:
        return wanted
    if room < state_bytes:
        raise MemoryShortage(
            f"a recurrent state needs {in_units(state_bytes)}, {in_units(max(0, room))} are available: "
            "close other programs, raise the option kv_memory, or use a smaller model"
        )
    return min(wanted, max(1, room // (2 if shared else 1) // state_bytes))


def step_bytes(config: ModelConfig, tokens: int) -> int:
    """Return about the bytes that a step of `tokens` tokens needs: the logits of all rows, and one layer's values."""
    return tokens * 4 * (config.vocab + 8 * config.width + 3 * config.ffn)


def choose(
    asked: int | None,
    model_context: int,
    max_batch: int,
    page_bytes: int,
    available: int | None,
    given: int | None = None,
    beside: int = 0,
    share: float = HOST_TRAITS.memory_share,
) -> tuple[int, int]:
    """Return the context in positions and the number of pages, for pages of `page_bytes`.

    asked: the wanted context; None: the minimum of the model's, DEFAULT_CONTEXT and what the memory allows.
    available: bytes of memory.
    given: bytes that the pool takes; None: a share of the available ones.
    beside: bytes of these that recurrent states take.
    share: the part of the available memory that pages and states may take.

    The pages hold a context for every request that runs and some more, as far as the memory allows; memory is touched
    page by page as it is used. Pages of models without a KV cache have no bytes: they count positions, and limit
    nothing. Raises RequestError for a context that the model does not have, MemoryShortage if not even
    one fits. The rotary table of a context, twice while it is copied in, is no larger than its pages: it has its place
    in the share of the memory that the pages leave.
    """
    if asked is not None and not 1 <= asked <= model_context:
        raise RequestError(f"the option max_context is {safe_repr(asked)}: this model allows 1 to {model_context}")
    context = asked or min(model_context, DEFAULT_CONTEXT)
    if given is not None and available is not None and given > available:
        raise MemoryShortage(
            f"the option kv_memory is {in_units(given)}, {in_units(available)} are available beside the weights: "
            "give less, or leave it out"
        )
    wanted = count_pages(context) * (max_batch + SPARE_CONTEXTS)
    if not page_bytes:
        return context, wanted
    if given is not None:
        return _within(given, asked, context, page_bytes, beside)
    if available is None:
        return context, wanted
    limit = max(0, int(available * share) - beside)
    num_affordable = limit // page_bytes
    if count_pages(context) > num_affordable:
        if asked is not None or num_affordable < 1:
            needed, part = count_pages(context) * page_bytes, "half" if share == 0.5 else f"{share:.0%}"
            smaller = f"lower the option max_context to at most {num_affordable * PAGE}"
            raise MemoryShortage(
                f"a context of {context} positions needs {in_units(needed)} for keys and values, "
                f"{in_units(limit)} ({part} of the available memory) can be used: "
                f"{smaller if num_affordable else 'close other programs, or use a smaller model'}"
            )
        context = num_affordable * PAGE
    return context, min(wanted, num_affordable)


def _within(given: int, asked: int | None, context: int, page_bytes: int, beside: int) -> tuple[int, int]:
    """Return the context, reduced to what fits unless it was asked for, and all pages that `given` bytes hold."""
    pages = min(max(0, given - beside) // page_bytes, MAX_PAGES)
    if pages < 1 or (asked is not None and count_pages(asked) > pages):
        positions = context if asked is not None else min(context, PAGE)
        needed = count_pages(positions) * page_bytes
        smaller = f", or lower the option max_context to at most {pages * PAGE}" if pages else ""
        taken = f", {in_units(beside)} of it for recurrent states" if beside else ""
        raise MemoryShortage(
            f"a context of {positions} positions needs {in_units(needed)} for keys and values, "
            f"the option kv_memory gives {in_units(given)}{taken}: give more{smaller}"
        )
    return min(context, pages * PAGE), pages
