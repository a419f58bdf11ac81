"""Answers that an engine makes for a server: many at once, told to the event loop in one call for each step."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from sporelm.api.answer import Answer
from sporelm.api.async_llm import AsyncLLM
from sporelm.api.completion import Piece
from sporelm.engine import Request

Result = TypeVar("Result")


class Bell:
    """Wakes those who wait for news of their requests, all of a step's at once: to wake a loop costs more than to look
    at a token."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Event] = deque()

    def add(self, who: asyncio.Event) -> None:
        """There is news for `who`, who hears of it when the bell is rung. From the engine's thread."""
        self._waiting.append(who)

    def ring(self) -> None:
        """Wake all who were added. From the engine's thread."""
        if self._waiting:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.popleft().set()


class AnswerStream:
    """An answer that the engine has taken, piece by piece. `close` cancels it, in the middle of its prompt too."""

    def __init__(self, llm: AsyncLLM, bell: Bell, answer: Answer) -> None:
        self.llm, self.answer = llm, answer
        self._bell = bell
        self._news = asyncio.Event()

    @property
    def constrained(self) -> bool:
        """Whether a grammar says what the answer must look like."""
        return self.answer.grammar is not None

    def _follow(self) -> None:
        self.llm.pump.follow(self.answer.request, lambda request: self._bell.add(self._news))

    async def next(self) -> Piece:
        """The next piece; the last one has the completion. Raises BackendError if the engine has stopped."""
        while True:
            await self._news.wait()
            self._news.clear()
            piece = self.answer.take(self.llm.pump)
            if piece is None:
                continue
            if piece.finish_reason:
                failure = self.llm.pump.failure
                if failure is not None:
                    raise self.llm.pump.stopped() from failure
                return replace(piece, completion=self.answer.completion(self.llm.llm.timings))
            return piece

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """All pieces that are still to come."""
        while True:
            piece = await self.next()
            yield piece
            if piece.finish_reason:
                return

    def close(self) -> None:
        """Cancel what runs. Returns at once; closing again does nothing."""
        if self.answer.finish_reason is None:
            self.llm.pump.cancel(self.answer.request)


async def begin(llm: AsyncLLM, bell: Bell, answers: Iterable[Answer]) -> list[AnswerStream]:
    """Have the engine take answers, all or none. Raises QueueFull, BackendError, RequestError, ContextOverflow."""
    streams = [AnswerStream(llm, bell, answer) for answer in answers]

    def follow() -> None:
        begun: list[Request] = []
        try:
            for stream in streams:
                stream._follow()
                begun.append(stream.answer.request)
        except BaseException:
            for request in begun:
                llm.pump.engine.cancel(request)
            raise

    try:
        await llm.between_steps(follow)
    except BaseException:
        for stream in streams:  # who leaves before they are taken does not want them any more
            stream.close()
        raise
    return streams


async def merged(streams: Sequence[AnswerStream]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of several answers, each with the answer's number, as they come."""
    if len(streams) == 1:
        async for piece in streams[0].pieces():
            yield 0, piece
        return
    waiting = {asyncio.ensure_future(stream.next()): number for number, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda each: waiting[each]):
                number, piece = waiting.pop(task), task.result()
                if not piece.finish_reason:
                    waiting[asyncio.ensure_future(streams[number].next())] = number
                yield number, piece
    finally:
        for task in waiting:
            task.cancel()


async def in_thread_if(large: bool, call: Callable[[], Result]) -> Result:
    """What a call gives; beside the event loop where it is `large`, since a thread costs some tenths of a ms."""
    return await asyncio.to_thread(call) if large else call()
