"""AsyncLLM: many answers at once, from one event loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.api.adapters import LoraAdapter
from sporelm.api.answer import Answer
from sporelm.api.completion import Completion, Piece
from sporelm.api.embedding import finished, pooled_all, pooling_of
from sporelm.api.isolation import Isolation
from sporelm.api.llm import LLM, several
from sporelm.api.open_model import Message, Prompt
from sporelm.api.params import SamplingParams, single
from sporelm.api.pump import Pump, Work
from sporelm.api.reranking import Ranked, pairs_of, ranked, scored
from sporelm.api.stepwise import Stepwise
from sporelm.engine import Metrics, Request
from sporelm.errors import SporeError
from sporelm.text.budget import GRAMMAR_SECONDS, RENDER_SECONDS

T = TypeVar("T")


class AsyncLLM:
    """An `LLM` whose steps run in a thread of their own; its methods never hold up the event loop.

    Requests that are made while others run join them in the next step.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        render_seconds: float = RENDER_SECONDS,
        grammar_seconds: float = GRAMMAR_SECONDS,
        **options: Any,
    ) -> None:
        """Load a model. Raises SporeError.

        render_seconds   of CPU that rendering a chat may take, beside 0.2 ms for each message
        grammar_seconds  of CPU that compiling a grammar may take
        options          those of `LLM`

        What takes longer is stopped, and its request ends with RequestError or ModelFileError.
        """
        self.llm = LLM(model, **options)
        self.isolation = self.llm.isolation = Isolation(self.llm.tokenizer, render_seconds, grammar_seconds)
        self.pump = Pump(self.llm.engine)

    @property
    def healthy(self) -> bool:
        """Whether requests are taken."""
        return self.pump.failure is None and self.llm.is_open

    @property
    def metrics(self) -> Metrics:
        """As `LLM.metrics`: reading them waits for no step."""
        return self.llm.metrics

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncGenerator[Piece, None]:
        """Continue one prompt piece by piece; closing the iterator, or cancelling the task, cancels the request.

        Raises RequestError at once for parameters that ask for several answers. The prompt is read, and a grammar
        compiled, beside the event loop: with the first piece RequestError for either, ContextOverflow, QueueFull.
        """
        chosen = single(params)

        async def make() -> Answer:
            await self.isolation.try_grammar(chosen.grammar)
            return await asyncio.to_thread(lambda: self.llm.answer(self.llm.prompt_ids(prompt), chosen))

        return self._begun(make)

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncGenerator[Piece, None]:
        """The answer to messages {"role", "content"}, piece by piece. What others said before is found again."""
        chosen = single(params)

        async def make() -> Answer:
            prompt = await self.isolation.render(lambda: self.llm.render(messages), large=True)
            await self.isolation.try_grammar(chosen.grammar)
            return await asyncio.to_thread(lambda: self.llm.answer(self.llm.chat_ids(prompt), chosen, continues=False))

        return self._begun(make)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Continue one prompt; with n > 1 the completion has alternatives. Raises as `stream`."""
        chosen = SamplingParams() if params is None else params
        await self.isolation.try_grammar(chosen.grammar)
        group = await asyncio.to_thread(lambda: self.llm.several_answers(self.llm.prompt_ids(prompt), chosen))
        tasks = [asyncio.ensure_future(_last(self._pieces(answer))) for answer in group]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return self.llm.best_of(group)

    async def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The answer to messages. Raises as `stream`."""
        return await _last(self.chat_stream(messages, params))

    async def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: bool = False,
        adapter: str | None = None,
    ) -> NDArray[np.float32]:
        """`LLM.embed`, one text after the other, in steps between which what else runs goes on. Raises likewise."""
        prompts = several(texts)
        chosen = pooling_of(self.llm.config, pooling, prompts)
        number, engine = self.llm.adapters.number(adapter), self.llm.engine
        ids = await asyncio.to_thread(
            lambda: [self.llm.embed_ids(prompt, prompt_name, truncate=truncate) for prompt in prompts]
        )
        found = await self.stepwise(pooled_all(engine, ids, chosen, number))
        return finished(self.llm, found, normalize=normalize)

    async def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, normalize: bool = True
    ) -> list[Ranked]:
        """`LLM.rerank`, in steps between which what else runs goes on. Raises likewise."""
        texts = await asyncio.to_thread(pairs_of, self.llm, query, documents, top_n)
        return ranked(await self.stepwise(scored(self.llm, texts)), top_n, normalize=normalize)

    def learn_templates(self) -> None:
        """Compile the model's chat templates and try their habits, so that no request waits for that."""
        if not self.llm.generates or not self.llm.tokenizer.chat_templates:
            return
        for tools in (False, True):
            with suppress(SporeError):  # told to those who chat
                self.llm.chat_template(tools=tools).learn_habits()

    async def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> str:
        """`LLM.load_adapter`, while answers go on; its name. Raises likewise."""
        source = LoraAdapter(path, name, scale)
        return (await asyncio.to_thread(self.llm.adapters.load, [source], self.pump.wait_for))[0]

    async def unload_adapter(self, name: str) -> None:
        """`LLM.unload_adapter`, while answers go on. Raises likewise."""
        await asyncio.to_thread(self.llm.adapters.unload, name, self.pump.wait_for)

    async def close(self) -> None:
        """Cancel what runs, and free the model. Closing again does nothing."""
        await asyncio.to_thread(self._close)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncLLM cannot be pickled or copied: open the model again where it is needed")

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def between_steps(self, what: Callable[[], T]) -> T:
        """The result of a call that happens between two steps, in the engine's thread; it raises what that raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = what()
            except BaseException as error:
                _tell(loop, done, None, error)
            else:
                _tell(loop, done, result, None)

        self.pump.ask(run)
        return await done

    async def stepwise(self, steps: Stepwise[T]) -> T:
        """The result of work in the engine's thread, of which one step at a time is done between two steps of the
        requests'. Whoever leaves ends it. It raises what the work raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        work = Work(steps, lambda result, error: _tell(loop, done, result, error))
        self.pump.work(work)
        try:
            return await done
        finally:
            self.pump.leave(work)

    def _close(self) -> None:
        self.pump.close()
        self.isolation.close()
        self.llm.close()  # files are finished and removed, and threads are waited for

    async def _begun(self, make: Callable[[], Awaitable[Answer]]) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer that is made beside the event loop."""
        async with aclosing(self._pieces(await make())) as pieces:
            async for piece in pieces:
                yield piece

    async def _pieces(self, answer: Answer) -> AsyncGenerator[Piece, None]:
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def tell(request: Request) -> None:
            _call_soon(loop, news.set)

        try:
            # Whoever leaves while a step runs has asked to be added after it, and is cancelled next.
            await self.between_steps(lambda: self.pump.follow(answer.request, tell))
            while True:
                await news.wait()
                news.clear()
                piece = answer.take(self.pump)
                if piece is None:
                    continue
                if piece.finish_reason:
                    if self.pump.failure is not None:
                        raise self.pump.stopped() from self.pump.failure
                    yield replace(piece, completion=answer.completion(self.llm.timings))
                    return
                yield piece
        finally:
            self.pump.cancel(answer.request)


def _tell(loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]", result: Any, error: BaseException | None) -> None:
    """Settle a future of another thread's loop, unless nobody waits for it any more."""

    def settle() -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    _call_soon(loop, settle)


def _call_soon(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    """Have something done in another thread's loop, unless that is closed: then nobody waits there."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(what)


async def _last(pieces: AsyncGenerator[Piece, None]) -> Completion:
    """The completion at the end of a stream."""
    async for piece in pieces:
        if piece.completion is not None:
            await pieces.aclose()
            return piece.completion
    raise AssertionError("a stream ends with its completion")
