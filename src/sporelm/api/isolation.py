"""Slow chat templates and new grammars, processed outside the engine's thread and the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sporelm.errors import BackendError
from sporelm.text.budget import GRAMMAR_SECONDS, RENDER_SECONDS
from sporelm.text.grammar import Grammar, GrammarTrials, raise_failure
from sporelm.text.isolated_process import IsolatedProcess
from sporelm.text.template import NeedsIsolation, at_once
from sporelm.text.tokenizer import Tokenizer

MAX_THREADS = 4  # that wait for renderings; a pool of their own, so that slow templates delay nothing else
T = TypeVar("T")


class Isolation:
    """The child processes of one open model: one for slow renderings, one that tries grammars.

    A process starts when it is first needed; ordinary chats never need one.
    """

    def __init__(
        self, tokenizer: Tokenizer, render_seconds: float = RENDER_SECONDS, grammar_seconds: float = GRAMMAR_SECONDS
    ) -> None:
        """
        render_seconds    CPU time for rendering a chat
        grammar_seconds   CPU time for compiling a grammar
        """
        self.render_seconds = render_seconds
        self.renderer = IsolatedProcess("render")
        self._compiler = IsolatedProcess("grammar")
        self._trials = GrammarTrials(tokenizer, self._compiler, grammar_seconds)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "render")
        self._closed = False

    async def render(self, render: Callable[[], T], *, large: bool) -> T:
        """Return the result of a call that renders a chat: run here if that is fast, else in a thread that may wait for
        the child process. A `large` chat goes there directly. The call may be repeated; its errors are passed on.
        """
        if not large:
            try:
                with at_once():
                    return render()
            except NeedsIsolation:
                pass
        if self._closed:
            raise BackendError("the model was closed; open it again")
        return await asyncio.get_running_loop().run_in_executor(self._threads, render)

    async def try_grammar(self, grammar: Grammar | None) -> None:
        """Wait until a grammar, if there is one, has passed its trial. Raises RequestError, QueueFull, BackendError."""
        if grammar is not None:
            trial = await asyncio.to_thread(self._trials.submit, grammar)
            raise_failure(await asyncio.wrap_future(trial))

    def check_grammar(self, grammar: Grammar | None) -> None:
        """`try_grammar` for a thread that may wait. Raises likewise."""
        if grammar is not None:
            self._trials.check(grammar)

    def close(self) -> None:
        """Kill the processes; pending jobs raise BackendError. Closing again does nothing."""
        self._closed = True
        self.renderer.close()
        self._compiler.close()
        self._threads.shutdown(cancel_futures=True)


async def render_apart(isolation: Isolation | None, render: Callable[[], T], *, large: bool) -> T:
    """`Isolation.render`; without one, at once or in a thread."""
    if isolation is not None:
        return await isolation.render(render, large=large)
    return await asyncio.to_thread(render) if large else render()
