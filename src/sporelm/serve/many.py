"""Many prompts of one request: a few at a time, so that they hold little memory and no place that others wait for."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from sporelm.api.answer import Answer
from sporelm.api.completion import Piece
from sporelm.errors import QueueFull
from sporelm.serve.answering import AnswerStream, in_thread_if, merged
from sporelm.serve.endpoint import Call
from sporelm.serve.served_model import ServedModel
from sporelm.serve.usage import check_finished

AGAIN_SECONDS = 0.05  # until a prompt is tried again that found the queue full behind others of its request
UNREAD = 64  # pieces that wait for their reader, of all prompts together

News = tuple[int, int, Piece, AnswerStream]
Make = Callable[[int], list[Answer]]


async def begun(
    call: Call, model: ServedModel, make: Make, at: int, *, patient: bool, large: bool
) -> list[AnswerStream]:
    """The answers to prompt `at`, taken by the engine; a `patient` one waits where the queue is full."""
    while True:
        answers = await in_thread_if(large, lambda: make(at))
        try:
            return await call.begin(model, answers)
        except QueueFull:
            if not patient:
                raise
            await asyncio.sleep(AGAIN_SECONDS)


async def each_of(
    call: Call, model: ServedModel, make: Make, count: int, made: int, *, large: bool = False
) -> AsyncGenerator[News, None]:
    """Pieces of the answers to `count` prompts, each of which has `made`: (prompt, answer, piece, stream).

    make    the answers to prompt number so-and-so; called when its turn comes, in a thread if it is `large`

    Whoever leaves closes this, which ends all of them.
    Raises QueueFull if not even the first one is taken; Refusal for an answer that fails.
    """
    width = max(1, model.llm.llm.engine.limits.max_batch // made)
    first = await begun(call, model, make, 0, patient=False, large=large)
    if count == 1:
        async for number, piece in merged(first):
            if piece.completion is not None:
                check_finished(piece.completion, constrained=first[number].constrained)
            yield 0, number, piece, first[number]
        return
    news: asyncio.Queue[News | None] = asyncio.Queue(UNREAD)  # None at its end
    left = iter(range(1, count))

    async def follow(at: int | None, streams: list[AnswerStream]) -> None:
        while at is not None:
            async for number, piece in merged(streams):
                if piece.completion is not None:
                    check_finished(piece.completion, constrained=streams[number].constrained)
                await news.put((at, number, piece, streams[number]))
            at = next(left, None)
            if at is not None:
                streams = await begun(call, model, make, at, patient=True, large=large)

    async def another() -> None:
        if (at := next(left, None)) is not None:
            await follow(at, await begun(call, model, make, at, patient=True, large=large))

    async def all_of_them() -> BaseException | None:
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(follow(0, first))
                for _ in range(min(width, count) - 1):
                    group.create_task(another())
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        await news.put(None)
        return failure

    work = asyncio.ensure_future(all_of_them())
    try:
        while (told := await news.get()) is not None:
            yield told
        if (failure := await work) is not None:
            raise failure
    finally:
        work.cancel()
        await asyncio.wait({work})  # so that it begins no more answers for a request that has ended
