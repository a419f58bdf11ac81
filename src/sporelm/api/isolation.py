"""Slow chat templates, pictures and new grammars, processed outside the engine's thread and the event loop."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from sporelm.api.image_budget import IsCancelled
from sporelm.api.image_inputs import TakenImages, has_pictures
from sporelm.errors import BackendError
from sporelm.processes.isolated_process import IsolatedProcess
from sporelm.text.chat_templates.chat_messages import with_known_roles
from sporelm.text.chat_templates.chat_template import NeedsIsolation, without_waiting
from sporelm.text.chat_templates.render_budget import RENDER_SECONDS
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_checks import GRAMMAR_SECONDS
from sporelm.text.grammar.grammar_trials import GrammarTrials, raise_failure
from sporelm.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.api.loaded_llm import LoadedLLM

MAX_THREADS = 4  # threads that wait for renderings; their own pool, so that slow templates delay nothing else
MAX_IMAGE_THREADS = 4  # threads that read pictures; renderings do not wait for them
T = TypeVar("T")


class Isolation:
    """The child processes of one open model: one renders slow templates, one compiles grammars on trial.

    A process starts when it is first needed; ordinary chats never need one.
    """

    def __init__(
        self, tokenizer: Tokenizer, render_seconds: float = RENDER_SECONDS, grammar_seconds: float = GRAMMAR_SECONDS
    ) -> None:
        """Start no process yet.

        render_seconds    CPU time for rendering a chat
        grammar_seconds   CPU time for compiling a grammar
        """
        self.render_seconds = render_seconds
        self.renderer = IsolatedProcess("render")
        self._compiler = IsolatedProcess("grammar")
        self._trials = GrammarTrials(tokenizer, self._compiler, grammar_seconds)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "render")
        self._image_threads = ThreadPoolExecutor(MAX_IMAGE_THREADS, "images")
        self._closed = False

    async def render(self, render: Callable[[], T], *, large: bool) -> T:
        """Return the result of a call that renders a chat. Passes its errors on.

        The call runs here if it is fast, else in a thread that may wait for the child process. A `large` chat goes to
        the thread directly. The call may run twice.
        """
        if not large:
            try:
                with without_waiting():
                    return render()
            except NeedsIsolation:
                pass
        self._check_open()
        return await asyncio.get_running_loop().run_in_executor(self._threads, render)

    async def read_images(self, read: Callable[[IsCancelled], T]) -> T:
        """Return the result of a call that reads pictures, in a thread for them. Passes its errors on.

        The call is given a function that returns whether this coroutine was cancelled; then it should end soon.
        """
        self._check_open()
        return await _run_cancellable(self._image_threads, read)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("the model was closed; open it again")

    async def try_grammar(self, grammar: Grammar | None, tenant: str = "") -> None:
        """Wait until a grammar, if any, has passed its trial. Raises RequestError, QueueFull, BackendError.

        Trials are served round robin by `tenant`, the salt of a request.
        """
        if grammar is not None:
            trial = await asyncio.to_thread(self._trials.submit, grammar, tenant)
            raise_failure(await asyncio.wrap_future(trial))

    def check_grammar(self, grammar: Grammar | None, tenant: str = "") -> None:
        """Run `try_grammar` in a thread that may wait. Raises the same errors."""
        if grammar is not None:
            self._trials.check(grammar, tenant)

    def close(self) -> None:
        """Kill the processes; pending jobs raise BackendError. Closing again does nothing."""
        self._closed = True
        self.renderer.close()
        self._compiler.close()
        self._threads.shutdown(cancel_futures=True)
        self._image_threads.shutdown(cancel_futures=True)


async def render_isolated(isolation: Isolation | None, render: Callable[[], T], *, large: bool) -> T:
    """Render with an `Isolation`; without one, render here, or in a thread if the chat is `large`."""
    if isolation is not None:
        return await isolation.render(render, large=large)
    return await asyncio.to_thread(render) if large else render()


async def take_images_isolated(llm: "LoadedLLM", messages: Any, tenant: str = "") -> TakenImages:
    """Take the pictures from messages as `LLM.take_images` does: in a thread, if there are any.

    Roles are renamed as `with_known_roles` does. Reading stops when this coroutine is cancelled. Raises RequestError,
    ContextOverflow, BackendError.
    """
    messages = with_known_roles(messages)
    if not has_pictures(messages):
        return llm.take_images(messages, tenant)

    def read(is_cancelled: IsCancelled) -> TakenImages:
        return llm.take_images(messages, tenant, is_cancelled)

    return await (_run_cancellable(None, read) if llm.isolation is None else llm.isolation.read_images(read))


async def _run_cancellable(threads: ThreadPoolExecutor | None, call: Callable[[IsCancelled], T]) -> T:
    """Return the result of a call in a thread, which can learn that this coroutine has ended without it."""
    has_ended = threading.Event()
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, call, has_ended.is_set)
    finally:
        has_ended.set()
