"""Work on a model's texts that is kept away from its engine and its event loop: slow templates, and new grammars."""

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

MAX_THREADS = 4  # that wait for renderings: threads of their own, so that nothing else waits for a slow template
T = TypeVar("T")


class Isolation:
    """The processes of one open model: one that renders what takes long, one that tries grammars.

    A process starts when it is first needed, which an ordinary chat never does.
    """

    def __init__(
        self, tokenizer: Tokenizer, render_seconds: float = RENDER_SECONDS, grammar_seconds: float = GRAMMAR_SECONDS
    ) -> None:
        """
        render_seconds    of CPU that rendering a chat may take
        grammar_seconds   of CPU that compiling a grammar may take
        """
        self.render_seconds = render_seconds
        self.renderer = IsolatedProcess("render")
        self._compiler = IsolatedProcess("grammar")
        self._trials = GrammarTrials(tokenizer, self._compiler, grammar_seconds)
        self._threads = ThreadPoolExecutor(MAX_THREADS, "render")
        self._closed = False

    async def render(self, render: Callable[[], T], *, large: bool) -> T:
        """The result of a call that renders a chat: at once if that is brief, else in a thread that may wait for the
        other process. What is `large` goes to the thread at once. The call may be repeated. It raises what that raises.
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
        """Kill the processes; who waits for them gets BackendError. Closing again does nothing."""
        self._closed = True
        self.renderer.close()
        self._compiler.close()
        self._threads.shutdown(cancel_futures=True)


async def render_apart(isolation: Isolation | None, render: Callable[[], T], *, large: bool) -> T:
    """`Isolation.render`; without one, at once or in a thread."""
    if isolation is not None:
        return await isolation.render(render, large=large)
    return await asyncio.to_thread(render) if large else render()
