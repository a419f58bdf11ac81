"""AnswerStream: an answer on its way, and the notifier that wakes many of them once per engine step."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from sporelm.api.async_llm import AsyncLLM
from sporelm.api.completion import Piece
from sporelm.api.text_generation import TextGeneration

if TYPE_CHECKING:
    from sporelm.serve.model_pool.served_model import ServedModel

Result = TypeVar("Result")


class Notifier:
    """Wakes the tasks that wait for a step's tokens, all at once: waking an event loop costs more than reading a
    token. `add` and `notify` are called in the engine's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[asyncio.Event] = deque()

    def add(self, event: asyncio.Event) -> None:
        """Set `event` at the next `notify`."""
        self._events.append(event)

    def notify(self) -> None:
        """Set the events that were added."""
        if self._events:
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                self._loop.call_soon_threadsafe(self._set_events)

    def _set_events(self) -> None:
        while self._events:
            self._events.popleft().set()


class AnswerStream:
    """An answer that the engine has accepted, piece by piece. `close` cancels it, also while its prompt is computed."""

    def __init__(self, llm: AsyncLLM, answer: TextGeneration) -> None:
        self.answer = answer
        self.has_update = asyncio.Event()
        self._llm = llm

    @property
    def has_grammar(self) -> bool:
        """Whether a grammar constrains the answer."""
        return self.answer.grammar is not None

    async def next_piece(self) -> Piece:
        """Return the next piece; the last one has the completion. Raises BackendError if the engine has stopped."""
        while True:
            await self.has_update.wait()
            self.has_update.clear()
            piece = self._llm.take(self.answer)
            if piece is not None:
                return piece

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Yield the remaining pieces."""
        while True:
            piece = await self.next_piece()
            yield piece
            if piece.finish_reason:
                return

    def take(self) -> None:
        """Add the tokens generated so far to the answer, without waiting for more."""
        self._llm.take(self.answer)

    def close(self) -> None:
        """Cancel the answer unless it has ended. Returns at once; closing again does nothing."""
        self._llm.cancel(self.answer)


async def start_answers(model: "ServedModel", answers: Sequence[TextGeneration]) -> list[AnswerStream]:
    """Start answers, all or none. Raises QueueFull, BackendError, RequestError, ContextOverflow."""
    streams = {id(answer): AnswerStream(model.async_llm, answer) for answer in answers}
    await model.async_llm.start(answers, lambda answer: model.notifier.add(streams[id(answer)].has_update))
    return list(streams.values())


async def merge_streams(streams: Sequence[AnswerStream]) -> AsyncGenerator[tuple[int, Piece], None]:
    """Yield the pieces of several answers as they arrive, each with the index of its stream."""
    if len(streams) == 1:
        async for piece in streams[0].pieces():
            yield 0, piece
        return
    pending = {asyncio.ensure_future(stream.next_piece()): index for index, stream in enumerate(streams)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda each: pending[each]):
                index = pending.pop(task)
                piece = task.result()
                if not piece.finish_reason:
                    pending[asyncio.ensure_future(streams[index].next_piece())] = index
                yield index, piece
    finally:
        for task in pending:
            task.cancel()


async def run_in_thread_if(is_large: bool, call: Callable[[], Result]) -> Result:
    """Return the result of a call, run in a thread if it `is_large`: a thread costs some tenths of a millisecond."""
    return await asyncio.to_thread(call) if is_large else call()
