"""Requests with many prompts: a few run at a time, so that they hold little memory and leave places to others."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from sporelm.api.completion import Piece
from sporelm.api.text_generation import TextGeneration
from sporelm.errors import QueueFull
from sporelm.serve.chat.answer_stream import AnswerStream, merge_streams, run_in_thread_if
from sporelm.serve.chat.token_usage import check_finished
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.model_pool.served_model import ServedModel

RETRY_SECONDS = 0.05  # until a prompt is tried again that found the queue full after others of its request
MAX_UNREAD_PIECES = 64  # of all prompts together


class PromptPiece(NamedTuple):
    """A piece of answer number `choice_index` to prompt number `prompt_index`."""

    prompt_index: int
    choice_index: int
    piece: Piece
    stream: AnswerStream


PrepareAnswers = Callable[[int], list[TextGeneration]]


async def _start_prompt(
    call: ApiCall, model: ServedModel, prepare: PrepareAnswers, prompt: int, *, waits: bool, in_thread: bool
) -> list[AnswerStream]:
    """Start the answers to one prompt. If the queue is full, retry where it `waits`, else raise QueueFull."""
    while True:
        answers = await run_in_thread_if(in_thread, lambda: prepare(prompt))
        try:
            return await call.start(model, answers)
        except QueueFull:
            if not waits:
                raise
            await asyncio.sleep(RETRY_SECONDS)


async def stream_prompts(
    call: ApiCall,
    model: ServedModel,
    prepare: PrepareAnswers,
    num_prompts: int,
    answers_per_prompt: int,
    *,
    in_thread: bool = False,
) -> AsyncGenerator[PromptPiece, None]:
    """Yield the pieces of the answers to a list of prompts as they arrive.

    prepare    returns the answers to the prompt of a number; called when its turn comes, perhaps `in_thread`

    Closing the generator cancels all answers.
    Raises QueueFull if not even the first prompt is accepted; ApiError for an answer that fails.
    """
    width = max(1, model.llm.max_batch // answers_per_prompt)
    first = await _start_prompt(call, model, prepare, 0, waits=False, in_thread=in_thread)

    async def pieces_of(prompt: int, streams: list[AnswerStream]) -> AsyncGenerator[PromptPiece, None]:
        async for index, piece in merge_streams(streams):
            if piece.completion is not None:
                check_finished(piece.completion, has_grammar=streams[index].has_grammar)
            yield PromptPiece(prompt, index, piece, streams[index])

    if num_prompts == 1:
        async for each in pieces_of(0, first):
            yield each
        return
    queue: asyncio.Queue[PromptPiece | None] = asyncio.Queue(MAX_UNREAD_PIECES)  # None at its end
    remaining = iter(range(1, num_prompts))

    async def run_prompts(streams: list[AnswerStream] | None = None) -> None:
        """Run one prompt after the other, the first with the streams that were started for it."""
        prompt = 0 if streams is not None else next(remaining, None)
        while prompt is not None:
            if streams is None:
                streams = await _start_prompt(call, model, prepare, prompt, waits=True, in_thread=in_thread)
            async for each in pieces_of(prompt, streams):
                await queue.put(each)
            prompt = next(remaining, None)
            streams = None

    async def run_all() -> BaseException | None:
        failure: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_prompts(first))
                for _ in range(min(width, num_prompts) - 1):
                    group.create_task(run_prompts())
        except BaseExceptionGroup as errors:
            failure = errors.exceptions[0]
        await queue.put(None)
        return failure

    work = asyncio.ensure_future(run_all())
    try:
        while (item := await queue.get()) is not None:
            yield item
        if (failure := await work) is not None:
            raise failure
    finally:
        work.cancel()
        await asyncio.wait({work})  # so that it starts no more answers for a request that has ended
