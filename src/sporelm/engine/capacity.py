"""How much context, and how many pages, the memory allows."""

from collections.abc import Iterable
from typing import Any

from sporelm.backends.backend import Backend
from sporelm.engine.kv.pages import pages_for
from sporelm.errors import MemoryShortage, RequestError, shown
from sporelm.ops.attention import PAGE
from sporelm.tensor.dtype import ElementType
from sporelm.weights.config import ModelConfig
from sporelm.weights.load import in_units

DEFAULT_CONTEXT = 8192  # positions, unless asked for more, of models that allow more
SPARE_CONTEXTS = 3  # beyond one for each request that runs: conversations that rest keep their KV
MOST_PAGES = 1 << 20  # of a pool whose size is given: the positions of 67 million tokens
SHARE = 2  # a pool takes at most 1 / SHARE of the memory that is available when it is made


def bytes_per_page(memory: Iterable[Any], backend: Backend, kv: ElementType) -> int:
    """Bytes of one page in all caches together."""
    return sum(backend.page_bytes(each.kept, kv) for each in memory)


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
) -> tuple[int, int]:
    """The context in positions and the number of pages, for pages of `page_bytes` and `available` bytes of memory.

    asked: the context wanted; None takes the least of the model's, DEFAULT_CONTEXT and what the memory allows.
    given: bytes that the pool takes, all of them; None takes a share of what is available. The
    pages hold a context for every request that runs and some more, as far as the memory allows; memory is touched page
    by page as it is used. Raises RequestError for a context that the model does not have, MemoryShortage if not even
    one fits. The rotary table of a context, twice while it is copied in, is no larger than its pages: it has its place
    in the share of the memory that the pages leave.
    """
    if asked is not None and not 1 <= asked <= model_context:
        raise RequestError(f"--max-context is {shown(asked)}: this model allows 1 to {model_context}")
    context = asked or min(model_context, DEFAULT_CONTEXT)
    if given is not None:
        return _within(given, asked, context, page_bytes, available)
    wanted = pages_for(context) * (max_batch + SPARE_CONTEXTS)
    if available is None:
        return context, wanted
    affordable = available // SHARE // page_bytes
    if pages_for(context) > affordable:
        if asked is not None or affordable < 1:
            needed, limit = pages_for(context) * page_bytes, available // SHARE
            smaller = f"give a smaller --max-context, at most {affordable * PAGE}"
            raise MemoryShortage(
                f"a context of {context} positions needs {in_units(needed)} for keys and values, "
                f"{in_units(limit)} (half of what is available) can be had: "
                f"{smaller if affordable else 'close other programs, or take a smaller model'}"
            )
        context = affordable * PAGE
    return context, min(wanted, affordable)


def _within(given: int, asked: int | None, context: int, page_bytes: int, available: int | None) -> tuple[int, int]:
    """The context, cut to what fits unless it was asked for, and all pages that `given` bytes hold."""
    if available is not None and given > available:
        raise MemoryShortage(
            f"--kv-memory is {in_units(given)}, {in_units(available)} are available beside the weights: "
            "give less, or leave it out"
        )
    pages = min(given // page_bytes, MOST_PAGES)
    if pages < 1 or (asked is not None and pages_for(asked) > pages):
        positions = context if asked is not None else min(context, PAGE)
        needed = pages_for(positions) * page_bytes
        smaller = f", or a smaller --max-context, at most {pages * PAGE}" if pages else ""
        raise MemoryShortage(
            f"a context of {positions} positions needs {in_units(needed)} for keys and values, "
            f"--kv-memory gives {in_units(given)}: give more{smaller}"
        )
    return min(context, pages * PAGE), pages
