"""How much context, how many pages, and how many recurrent states the memory allows."""

from collections.abc import Iterable
from typing import Any

from sporelm.backends.protocol import Backend
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.errors import MemoryShortage, RequestError, shown
from sporelm.models.blocks.block_memory import State
from sporelm.models.config import ModelConfig
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import ElementType
from sporelm.units import in_units

DEFAULT_CONTEXT = 8192  # positions, unless asked for more, of models that allow more
SPARE_CONTEXTS = 3  # beyond one for each request that runs: conversations that rest keep their KV
MOST_PAGES = 1 << 20  # of a pool whose size is given: the positions of 67 million tokens
SHARE = 2  # a pool takes at most 1 / SHARE of the memory that is available when it is made
STATES = 4  # for each request that runs: its own, two that are kept of its text, one of a conversation that rests
LEAST_INTERVAL, MOST_INTERVAL = 8, 32  # pages between two states of a text that are kept


def bytes_per_page(memory: Iterable[Any], backend: Backend, kv: ElementType) -> int:
    """Bytes of one page in all caches together."""
    return sum(backend.page_bytes(each.kept, kv) for each in memory if not isinstance(each, State))


def bytes_per_state(memory: Iterable[Any], backend: Backend) -> int:
    """Bytes of one recurrent state of all layers together; 0 of models that keep none."""
    return backend.state_bytes([each.shapes for each in memory if isinstance(each, State)])


def interval_of(state_bytes: int, page_bytes: int) -> int:
    """Pages between two states of a text that are kept: together they have about a state's bytes, so that states take
    no more than keys and values do; within bounds, as nobody wants to compute much more anew."""
    if not page_bytes:
        return MOST_INTERVAL
    return min(max(-(-state_bytes // page_bytes), LEAST_INTERVAL), MOST_INTERVAL)


def choose_states(state_bytes: int, room: int | None, max_batch: int, *, shared: bool) -> int:
    """How many recurrent states there are, in `room` bytes, half of them where that is `shared` with pages; so many
    that each request that runs has STATES, if they fit. Memory is touched state by state as it is used. 0 of models
    that keep none. Raises MemoryShortage if not one fits."""
    if not state_bytes:
        return 0
    wanted = STATES * max_batch
    if room is None:
        return wanted
    if room < state_bytes:
        raise MemoryShortage(
            f"a recurrent state needs {in_units(state_bytes)}, {in_units(max(0, room))} can be had: "
            "close other programs, give a larger --kv-memory, or take a smaller model"
        )
    return min(wanted, max(1, room // (2 if shared else 1) // state_bytes))


def step_bytes(config: ModelConfig, tokens: int) -> int:
    """About what the values of a step of `tokens` tokens take: the scores of all rows, and what one layer computes."""
    return tokens * 4 * (config.vocab + 8 * config.width + 3 * config.ffn)


def choose(
    asked: int | None,
    model_context: int,
    max_batch: int,
    page_bytes: int,
    available: int | None,
    given: int | None = None,
    beside: int = 0,
) -> tuple[int, int]:
    """The context in positions and the number of pages, for pages of `page_bytes` and `available` bytes of memory.

    asked: the context wanted; None takes the least of the model's, DEFAULT_CONTEXT and what the memory allows.
    given: bytes that the pool takes, all of them; None takes a share of what is available.
    beside: of these bytes, those that recurrent states take.

    The pages hold a context for every request that runs and some more, as far as the memory allows; memory is touched
    page by page as it is used. Pages of models that keep nothing in them have no bytes: they count positions, and limit
    nothing. Raises RequestError for a context that the model does not have, MemoryShortage if not even
    one fits. The rotary table of a context, twice while it is copied in, is no larger than its pages: it has its place
    in the share of the memory that the pages leave.
    """
    if asked is not None and not 1 <= asked <= model_context:
        raise RequestError(f"--max-context is {shown(asked)}: this model allows 1 to {model_context}")
    context = asked or min(model_context, DEFAULT_CONTEXT)
    if given is not None and available is not None and given > available:
        raise MemoryShortage(
            f"--kv-memory is {in_units(given)}, {in_units(available)} are available beside the weights: "
            "give less, or leave it out"
        )
    wanted = count_pages(context) * (max_batch + SPARE_CONTEXTS)
    if not page_bytes:
        return context, wanted
    if given is not None:
        return _within(given, asked, context, page_bytes, beside)
    if available is None:
        return context, wanted
    affordable = max(0, available // SHARE - beside) // page_bytes
    if count_pages(context) > affordable:
        if asked is not None or affordable < 1:
            needed, limit = count_pages(context) * page_bytes, max(0, available // SHARE - beside)
            smaller = f"give a smaller --max-context, at most {affordable * PAGE}"
            raise MemoryShortage(
                f"a context of {context} positions needs {in_units(needed)} for keys and values, "
                f"{in_units(limit)} (half of what is available) can be had: "
                f"{smaller if affordable else 'close other programs, or take a smaller model'}"
            )
        context = affordable * PAGE
    return context, min(wanted, affordable)


def _within(given: int, asked: int | None, context: int, page_bytes: int, beside: int) -> tuple[int, int]:
    """The context, cut to what fits unless it was asked for, and all pages that `given` bytes hold."""
    pages = min(max(0, given - beside) // page_bytes, MOST_PAGES)
    if pages < 1 or (asked is not None and count_pages(asked) > pages):
        positions = context if asked is not None else min(context, PAGE)
        needed = count_pages(positions) * page_bytes
        smaller = f", or a smaller --max-context, at most {pages * PAGE}" if pages else ""
        taken = f", {in_units(beside)} of it for recurrent states" if beside else ""
        raise MemoryShortage(
            f"a context of {positions} positions needs {in_units(needed)} for keys and values, "
            f"--kv-memory gives {in_units(given)}{taken}: give more{smaller}"
        )
    return min(context, pages * PAGE), pages
