"""AsyncLLM: serves many concurrent requests from one event loop."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from sporelm.api.completion import Completion, Piece
from sporelm.api.conversation import Conversation
from sporelm.api.cooperative import CooperativeTask
from sporelm.api.document_ranking import RerankResult, encode_pairs, score_texts, sort_by_score
from sporelm.api.embeddings import choose_pooling, finish_vectors, pool_texts
from sporelm.api.engine_thread import EngineTask, EngineThread
from sporelm.api.isolation import Isolation, take_images_isolated
from sporelm.api.llm import LLM, as_prompt_list
from sporelm.api.loaded_llm import Message, Prompt
from sporelm.api.lora_adapters import LoraAdapter
from sporelm.api.sampling_params import SamplingParams, check_single
from sporelm.api.text_generation import TextGeneration
from sporelm.engine import Metrics
from sporelm.errors import SporeError
from sporelm.text.chat_templates.render_budget import RENDER_SECONDS
from sporelm.text.grammar.grammar_checks import GRAMMAR_SECONDS
from sporelm.vision.image_sources import check_picture_list

T = TypeVar("T")


class AsyncLLM:
    """An `LLM` whose engine runs in its own thread, so that no method blocks the event loop.

    Requests are batched continuously: a new one joins the running ones in the next step.
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

        render_seconds   CPU time for rendering a chat, plus 0.2 ms for each message
        grammar_seconds  CPU time for compiling a grammar
        options          those of `LLM`

        A rendering or compilation that exceeds its limit is stopped; its request gets RequestError or ModelFileError.
        """
        self.llm = LLM(model, **options)
        self.isolation = self.llm.isolation = Isolation(self.llm.tokenizer, render_seconds, grammar_seconds)
        if self.llm.image_reader is not None:
            self.llm.image_reader.isolate()
        self.engine_thread = EngineThread(self.llm.inference_engine)

    @property
    def healthy(self) -> bool:
        """Whether requests are accepted."""
        return self.engine_thread.failure is None and self.llm.is_open

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the engine; None while it runs."""
        return self.engine_thread.failure

    @property
    def is_idle(self) -> bool:
        """Whether no request waits or runs."""
        return self.llm.inference_engine.is_idle

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step."""
        return self.llm.inference_engine.num_waiting

    def limit_waiting(self, max_waiting: int) -> None:
        """Refuse new requests with QueueFull while `max_waiting` requests wait."""
        self.llm.inference_engine.max_waiting = max_waiting

    def notify_after_steps(self, notify: Callable[[], None]) -> None:
        """Call `notify` in the engine's thread after each step, behind the `on_update` calls of that step."""
        self.engine_thread.on_step = notify

    async def start(self, generations: Sequence[TextGeneration], on_update: Callable[[TextGeneration], None]) -> None:
        """Start generations, all or none.

        `on_update(generation)` is called in the engine's thread when a generation has new tokens or has ended; `take`
        returns them. If this coroutine is cancelled, the generations are too.

        Raises QueueFull, BackendError, RequestError, ContextOverflow.
        """

        def add(generation: TextGeneration) -> None:
            self.engine_thread.add_request(generation.request, lambda request: on_update(generation))

        def add_all() -> None:
            added: list[TextGeneration] = []
            try:
                for generation in generations:
                    add(generation)
                    added.append(generation)
            except BaseException:
                for generation in added:
                    self.llm.engine.cancel(generation.request)
                raise

        try:
            await self.run_between_steps(add_all)
        except BaseException:
            for generation in generations:
                self.cancel(generation)
            raise

    def take(self, generation: TextGeneration) -> Piece | None:
        """Return the new text of a started generation, or None; the last piece has the completion.

        Raises BackendError if the engine has stopped.
        """
        piece = generation.take(self.engine_thread)
        if piece is None or not piece.finish_reason:
            return piece
        if self.engine_thread.failure is not None:
            raise self.engine_thread.stopped_error() from self.engine_thread.failure
        return replace(piece, completion=generation.completion(self.llm.timings))

    def cancel(self, generation: TextGeneration) -> None:
        """Cancel a generation unless it has ended. Returns at once; cancelling again does nothing."""
        if generation.finish_reason is None:
            self.engine_thread.cancel(generation.request)

    async def conversation(self, system: str | None = None, *, salt: str = "") -> Conversation:
        """Start a conversation, between two steps. Only requests with the same `salt` share its cached prefixes."""
        return await self.run_between_steps(lambda: Conversation(self.llm, system, salt=salt))

    async def wake(self, path: Path, *, salt: str = "") -> Conversation:
        """Restore a conversation as `LLM.wake` does, while requests run. Raises the same errors."""
        return await asyncio.to_thread(Conversation.restore, self.llm, path, salt=salt)

    async def prompt_logits(
        self, ids: Sequence[int], take: Callable[[NDArray[np.float32]], None], adapter: str | None = None
    ) -> None:
        """Compute the logits of `LLM.logits` in several steps, while other requests run.

        `take` gets each chunk in the engine's thread: float32 [tokens, vocab], valid during the call.

        Raises ContextOverflow, RequestError, MemoryShortage.
        """
        await self.run_task(self.llm.engine.logits(ids, take, self.llm.adapters.adapter_id(adapter)))

    @property
    def metrics(self) -> Metrics:
        """The same as `LLM.metrics`. Reading them does not wait for a step."""
        return self.llm.metrics

    async def prompt_with_images(self, text: str, images: Sequence[Any]) -> list[int]:
        """Return the ids of raw text with pictures as `LLM.prompt_with_images` does, while other requests run. A string
        is a data URI here, never a path: give a `Path` for one."""
        return await asyncio.to_thread(self.llm.prompt_with_images, text, images)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncGenerator[Piece, None]:
        """Continue one prompt and yield pieces. Closing the iterator or cancelling the task cancels the request.

        The prompt is tokenized and a grammar compiled outside the event loop. Raises RequestError at once for
        parameters that ask for several completions; with the first piece RequestError, ContextOverflow, QueueFull.
        """
        chosen = check_single(params)

        async def prepare() -> TextGeneration:
            await self.isolation.try_grammar(chosen.grammar, chosen.salt)
            return await asyncio.to_thread(lambda: self.llm.prepare_generation(self.llm.prompt_ids(prompt), chosen))

        return self._prepare_and_stream(prepare)

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> AsyncGenerator[Piece, None]:
        """Answer messages {"role", "content"} and yield pieces. Prefixes of other requests are reused."""
        chosen = check_single(params)

        async def prepare() -> TextGeneration:
            taken = await take_images_isolated(self.llm, messages, chosen.salt)
            prompt = await self.isolation.render(lambda: self.llm.render_taken(taken), large=True)
            await self.isolation.try_grammar(chosen.grammar, chosen.salt)
            return await asyncio.to_thread(
                lambda: self.llm.prepare_generation(self.llm.chat_ids(prompt), chosen, continues=False)
            )

        return self._prepare_and_stream(prepare)

    async def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion:
        """Continue one prompt; with n > 1 the completion has alternatives. Raises like `stream`."""
        chosen = SamplingParams() if params is None else params
        await self.isolation.try_grammar(chosen.grammar, chosen.salt)
        group = await asyncio.to_thread(lambda: self.llm.prepare_generations(self.llm.prompt_ids(prompt), chosen))
        tasks = [asyncio.ensure_future(_wait_for_completion(self._pieces(generation))) for generation in group]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return self.llm.merge_completions(group)

    async def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Answer messages. Raises like `stream`."""
        return await _wait_for_completion(self.chat_stream(messages, params))

    async def embed(
        self,
        texts: Prompt | Sequence[Prompt] = (),
        *,
        images: Sequence[Any] = (),
        pooling: str | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: bool = False,
        adapter: str | None = None,
    ) -> NDArray[np.float32]:
        """Embed texts as `LLM.embed` does, while other requests run. Raises the same errors."""
        prompts = as_prompt_list(texts)
        chosen = choose_pooling(self.llm.config, pooling, prompts)
        adapter_id = self.llm.adapters.adapter_id(adapter)
        ids = await asyncio.to_thread(
            lambda: [
                *(self.llm.embed_ids(prompt, prompt_name, truncate=truncate) for prompt in prompts),
                *(self.llm.prompt_with_images("", [image]) for image in check_picture_list(images)),
            ]
        )
        pooled = await self.run_task(pool_texts(self.llm.inference_engine, ids, chosen, adapter_id))
        return finish_vectors(self.llm, pooled, normalize=normalize)

    async def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, normalize: bool = True
    ) -> list[RerankResult]:
        """Rerank documents as `LLM.rerank` does, while other requests run. Raises the same errors."""
        texts = await asyncio.to_thread(encode_pairs, self.llm, query, documents, top_n)
        return sort_by_score(await self.run_task(score_texts(self.llm, texts)), top_n, normalize=normalize)

    def warm_up_templates(self) -> None:
        """Compile the model's chat templates and probe their behaviour, so that no request waits for that."""
        if not self.llm.can_generate or not self.llm.tokenizer.chat_templates:
            return
        for tools in (False, True):
            with suppress(SporeError):  # raised again for each chat
                self.llm.chat_template(tools=tools).probe_features()

    async def load_adapter(self, path: str | Path, name: str | None = None, scale: float = 1.0) -> str:
        """Load a LoRA adapter as `LLM.load_adapter` does, while requests run. Returns its name."""
        source = LoraAdapter(path, name, scale)
        return (await asyncio.to_thread(self.llm.adapters.load, [source], self.engine_thread.run_between_steps))[0]

    async def unload_adapter(self, name: str) -> None:
        """Unload a LoRA adapter as `LLM.unload_adapter` does, while requests run."""
        await asyncio.to_thread(self.llm.adapters.unload, name, self.engine_thread.run_between_steps)

    async def close(self) -> None:
        """Cancel running requests and free the model. Closing twice does nothing."""
        await asyncio.to_thread(self._close)

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncLLM cannot be pickled or copied: open the model again where it is needed")

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def run_between_steps(self, call: Callable[[], T]) -> T:
        """Run a call in the engine's thread, between two steps. Returns its result, or raises its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                result = call()
            except BaseException as error:
                _set_result(loop, done, None, error)
            else:
                _set_result(loop, done, result, None)

        self.engine_thread.submit(run)
        return await done

    async def run_task(self, steps: CooperativeTask[T]) -> T:
        """Run a task in the engine's thread, one of its steps between two engine steps.

        Returns the result, or raises the task's error. Cancelling this coroutine cancels the task.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        task = EngineTask(steps, lambda result, error: _set_result(loop, done, result, error))
        self.engine_thread.submit_task(task)
        try:
            return await done
        finally:
            self.engine_thread.cancel_task(task)

    def _close(self) -> None:
        self.engine_thread.close()
        self.isolation.close()
        self.llm.close()  # finishes and removes files, and joins threads

    async def _prepare_and_stream(
        self, prepare: Callable[[], Awaitable[TextGeneration]]
    ) -> AsyncGenerator[Piece, None]:
        async with aclosing(self._pieces(await prepare())) as pieces:
            async for piece in pieces:
                yield piece

    async def _pieces(self, generation: TextGeneration) -> AsyncGenerator[Piece, None]:
        loop = asyncio.get_running_loop()
        updated = asyncio.Event()
        try:
            await self.start([generation], lambda _: _call_in_loop(loop, updated.set))
            while True:
                await updated.wait()
                updated.clear()
                piece = self.take(generation)
                if piece is None:
                    continue
                yield piece
                if piece.finish_reason:
                    return
        finally:
            self.cancel(generation)


def _set_result(
    loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]", result: Any, error: BaseException | None
) -> None:
    """Set a future's result or error from another thread, unless it is done already."""

    def settle() -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    _call_in_loop(loop, settle)


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Schedule a call in another thread's event loop; does nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


async def _wait_for_completion(pieces: AsyncGenerator[Piece, None]) -> Completion:
    """Consume a stream and return its completion."""
    async for piece in pieces:
        if piece.completion is not None:
            await pieces.aclose()
            return piece.completion
    raise AssertionError("a stream ends with its completion")
