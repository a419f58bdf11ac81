"""Texts of which every position's row is wanted: computed in steps of their own, between those of requests.

A text has its place among requests by when it came. It begins when its pages can be had beside those of the texts that
have begun, and waits until then, as a request does: who came later does not pass it. Between two steps its pages are an
idle sequence's. If running requests need them, it waits once more, and computes them anew; until that is done nobody
begins who came later. So each text comes to its end, however many ask.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.kv.kv_cache import KvCache
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.page_allocator import count_pages
from sporelm.engine.request import Request
from sporelm.engine.step import ScheduledSequence, Step
from sporelm.errors import MemoryShortage

if TYPE_CHECKING:
    from sporelm.engine.engine import Engine

Rows = NDArray[np.float32]
RowsCallback = Callable[[Rows], object]


@dataclass(eq=False)
class PromptRowsRequest:
    """One text. `compute` gives a step's rows, `take` is given those that are new."""

    after: int  # the number of the last request that came before it
    known: Sequence[int]
    adapter: int
    sequence: KvSequence
    compute: Callable[[Step], Rows]
    take: RowsCallback
    begun: bool = False  # it has had room
    lost: bool = False  # and has given it to others since
    held: int = 0  # positions that were held after its last step
    taken: int = 0
    failure: Exception | None = None  # of a step that somebody else had it do

    @property
    def pages(self) -> int:
        return count_pages(len(self.known))

    @property
    def done(self) -> bool:
        return self.taken == len(self.known)


class PromptRowsQueue:
    """All texts that have begun or wait, in the order of their arrival."""

    def __init__(self) -> None:
        self.short: Request | None = None  # the request that found no room when one was last to begin
        self._texts: dict[int, PromptRowsRequest] = {}  # by sequence

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[PromptRowsRequest]:
        return iter(list(self._texts.values()))

    @property
    def begun(self) -> list[PromptRowsRequest]:
        return [text for text in self._texts.values() if text.begun]

    @property
    def waiting(self) -> bool:
        """Whether one waits."""
        return any(not text.begun for text in self._texts.values())

    @property
    def num_pages(self) -> int:
        """Pages that those which have begun hold or will hold."""
        return sum(text.pages for text in self.begun)

    def add(self, text: PromptRowsRequest) -> None:
        """Let a text wait. Changes the line."""
        self._texts[text.sequence.id] = text

    def remove(self, text: PromptRowsRequest) -> None:
        """Forget a text. Changes the line; does nothing if it is not there."""
        self._texts.pop(text.sequence.id, None)

    def hold_back(self, request: Request) -> bool:
        """Whether a request must let a text pass that came before it. Changes nothing."""
        late = request.priority >= 0
        return late and any(text.after < request.id and (text.lost or not text.begun) for text in self._texts.values())

    def settle(self, text: PromptRowsRequest, kv_cache: KvCache, *, alone: bool) -> bool:
        """Whether a text may be computed now; it waits if others have taken its pages. `alone`: no request runs.
        Changes the text."""
        if text.begun and text.sequence.length < text.held:
            text.begun, text.lost = False, True
        if text.begun or any(not each.begun for each in self._before(text)) or self._is_late(text):
            return text.begun
        begun = self.begun
        pages = text.pages + sum(each.pages for each in begun)
        text.begun = (alone and not begun) or kv_cache.can_allocate(pages, len(begun) + 1)
        return text.begun

    def _before(self, text: PromptRowsRequest) -> Iterator[PromptRowsRequest]:
        for each in self._texts.values():
            if each is text:
                return
            yield each

    def _is_late(self, text: PromptRowsRequest) -> bool:
        """Whether a request finds no room that came before this text, or is more urgent."""
        short = self.short
        if short is None or short.finish_reason is not None:
            return False
        return (short.priority, short.id) <= (0, text.after)


class PromptRowsRunner:
    """The steps of an engine's texts."""

    def __init__(self, engine: "Engine") -> None:
        self.engine = engine

    def rows(
        self, tokens: Sequence[int], compute: Callable[[Step], Rows], take: RowsCallback, adapter: int
    ) -> Generator[bool, None, None]:
        """`Engine.logits` and its like: one row for every position of a text."""
        engine = self.engine
        kv_cache = engine.kv_cache
        with engine.turn:
            engine.check_open()
            probe = Request(tokens, max_tokens=1, adapter=adapter)
            engine.scheduler.check(probe, rolls=False)
            sequence = kv_cache.new_sequence(adapter=engine.scheduler.adapters[adapter], is_private=True)
            text = PromptRowsRequest(engine.last, probe.known, adapter, sequence, compute, take)
            engine.scheduler.texts.add(text)
        try:
            while True:
                with engine.turn:
                    engine.check_open()
                    if text.failure is not None:
                        raise text.failure
                    if not text.done:
                        self._advance(text)
                if text.done:
                    return
                yield text.begun
        finally:
            with engine.turn:
                self.end(text)

    def go_on(self) -> None:
        """One step of the first text that need not wait, if there is one: requests wait for texts, and nobody else may
        be there to compute them. If it fails, that is told to whom it belongs. Only in the engine's turn."""
        line = self.engine.scheduler.texts
        for text in line:
            try:
                moved = self._advance(text)
            except Exception as reason:
                text.failure = reason
            if text.done or text.failure is not None:
                self.end(text)
                return
            if moved:
                return

    def end(self, text: PromptRowsRequest) -> None:
        """Forget a text and what was computed for it. Does nothing the second time."""
        kv_cache = self.engine.kv_cache
        self.engine.scheduler.texts.remove(text)
        kv_cache.invalidate(text.sequence)
        kv_cache.drop(text.sequence)

    def _advance(self, text: PromptRowsRequest) -> bool:
        """The next step of a text; False if it must wait."""
        engine = self.engine
        if not engine.scheduler.texts.settle(text, engine.kv_cache, alone=not engine.scheduler.running):
            return False
        begin, found = self._chunk(text)
        text.held = text.sequence.length
        if text.held > text.taken:
            text.take(found[max(0, text.taken - begin) :])
            text.taken = text.held
        return True

    def _chunk(self, text: PromptRowsRequest) -> tuple[int, Rows]:
        """One step of a text alone, short if others wait for their next token: its first position, and its rows.
        Running requests may leave it no pages: then it waits once more."""
        engine, sequence = self.engine, text.sequence
        kv_cache, running = engine.kv_cache, engine.scheduler.running
        kv_cache.acquire(sequence)
        try:
            kv_cache.restore(sequence, text.known, [])
            begin, budget = sequence.length, engine.limits.token_budget
            if decoding := sum(request.decoding for request in running.values()):
                budget = min(budget, engine.scheduler.prefill_budget.allowed(decoding))
            ids = text.known[begin : begin + budget]
            copies: list[tuple[int, int]] = []
            if not kv_cache.reserve(sequence, begin + len(ids), copies):
                if not running:
                    raise MemoryShortage(
                        f"{kv_cache.describe_shortage(sequence, begin + len(ids))} are in use: ask again later"
                    )
                text.begun, text.lost = False, True
                return begin, np.zeros((0, 0), np.float32)
            scheduled = ScheduledSequence(
                0, ids, begin, sequence.page_table, len(ids), text.adapter, sequence.state_slot
            )
            began, step = perf_counter(), Step([scheduled], copies, kv_cache.pop_state_copies())
            found = text.compute(step)
            if engine.observer is not None:
                engine.observer.stepped(step, (began, began, *[perf_counter()] * 3))
            kv_cache.extend(sequence, ids)
        except BaseException:  # what the step has changed is not known: a state may be ahead of what is held
            kv_cache.invalidate(sequence)
            raise
        finally:
            kv_cache.release(sequence)
        return begin, found
