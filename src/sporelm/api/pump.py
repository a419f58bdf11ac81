"""The thread that steps an engine for those who must not wait: event loops."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sporelm.api.stepwise import Stepwise
from sporelm.engine import Engine, Request
from sporelm.errors import BackendError, QueueFull

MOST_FAILED = 3  # steps in a row, after which nothing more is tried
MOST_TURNS = 2  # works that hold pages at once: so a short one passes a long one, and memory is bounded

News = Callable[[Request], None]
Ended = Callable[[Any, BaseException | None], None]  # the result of a work, or why there is none


@dataclass(eq=False)
class Work:
    """What is done in many steps of the engine's, and who hears of its end."""

    steps: Stepwise[Any]
    ended: Ended


class Pump:
    """Steps the engine while there are requests, in a thread of its own.

    What is asked of it happens between two steps, so that nobody who asks waits for one; of works that take many steps
    of their own one step is done between two of the requests', by turns. `news(request)` is called from that thread
    when a request has new tokens or has ended. A step that fails is tried again; after some in a row every request
    ends, and the pump: `failure` then says why.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.told: Callable[[], None] = _nobody
        self._todo: deque[Callable[[], None]] = deque()
        self._works: deque[Work] = deque()  # that hold no pages
        self._begun: deque[Work] = deque()  # that hold some, MOST_TURNS at most
        self._unfinished: set[Work] = set()
        self._followed: dict[int, tuple[Request, News, int]] = {}  # by id, with the tokens that were told of
        self._awake = threading.Condition()
        self._closing = False
        self._failed = 0  # steps, one after the other
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def ask(self, what: Callable[[], None]) -> None:
        """Have something done between two steps. Returns at once. Raises BackendError if the pump has stopped."""
        with self._awake:
            if self._closing or self.failure is not None:
                raise self.stopped()
            self._todo.append(what)
            self._awake.notify()

    def wait_for(self, what: Callable[[], None]) -> None:
        """`ask`, and wait until it is done; it raises what that raises. Not from the pump's own thread."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                what()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.ask(run)
        done.result()

    def work(self, work: Work) -> None:
        """Have a work done, a step at a time. Returns at once. Raises BackendError if the pump has stopped, QueueFull
        for more works than requests may wait."""
        limit = self.engine.scheduler.waiting.limit
        if len(self._unfinished) >= limit:
            raise QueueFull(f"{limit} lists of texts are being worked on already, which is the limit: try again later")
        self._unfinished.add(work)  # before it can end
        try:
            self.ask(lambda: self._works.append(work))
        except BackendError:
            self._unfinished.discard(work)
            raise

    def leave(self, work: Work) -> None:
        """End a work soon: what it holds is given back, and nobody hears of it. Returns at once."""
        with self._awake:
            if not self._closing and self.failure is None:
                self._todo.append(lambda: self._leave(work))
                self._awake.notify()

    def stopped(self) -> BackendError:
        """Why nothing is taken any more."""
        reason = f" failed: {self.failure}" if self.failure is not None else " was closed"
        return BackendError(f"the engine{reason}; open the model again")

    def follow(self, request: Request, news: News) -> None:
        """Add a request to the engine and tell its news. Only between steps. Raises as `Engine.add`, and BackendError
        if the pump has stopped."""
        if self._closing or self.failure is not None:
            raise self.stopped()
        self.engine.add(request)
        self._followed[request.id] = (request, news, request.num_generated)

    def cancel(self, request: Request) -> None:
        """End a request soon. Returns at once; does nothing if the pump has stopped."""
        with self._awake:
            if not self._closing and self.failure is None:
                self._todo.append(lambda: self.engine.cancel(request))
                self._awake.notify()

    def close(self) -> None:
        """Cancel what runs and end the thread; waits for the step that runs."""
        with self._awake:
            self._closing = True
            self._awake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                while self._todo:
                    self._todo.popleft()()
                self._work()
                scheduler = self.engine.scheduler
                if not scheduler.idle or scheduler.texts.waiting:  # for another's text, which may be nobody's turn
                    self._step()
                self._tell()
        except BaseException as failure:  # whoever waits must hear of it, whatever it is
            with self._awake:
                self.failure = failure
        self._end()

    def _step(self) -> None:
        """One step. The engine goes on after one that fails, as memory may be short for a moment; not after several."""
        try:
            self.engine.step()
        except Exception:
            self._failed += 1
            if self._failed >= MOST_FAILED:
                raise
        else:
            self._failed = 0

    def _work(self) -> None:
        """One step of one work. If it fails, that is told to whom it belongs."""
        if self._works and len(self._begun) < MOST_TURNS:
            self._begun.append(self._works.popleft())
        if not self._begun:
            return
        work = self._begun.popleft()
        try:
            holds_pages = next(work.steps)
        except StopIteration as end:
            self._unfinished.discard(work)
            work.ended(end.value, None)
        except BaseException as error:
            self._unfinished.discard(work)
            work.ended(None, error)
        else:
            (self._begun if holds_pages else self._works).append(work)

    def _leave(self, work: Work) -> None:
        self._unfinished.discard(work)
        for line in (self._works, self._begun):
            if work in line:
                line.remove(work)
        work.steps.close()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the pump is to end."""
        with self._awake:
            while not (self._closing or self._todo or self._followed or self._works or self._begun):
                self._awake.wait()
            return not self._closing

    def _tell(self) -> None:
        for number, (request, news, told) in list(self._followed.items()):
            if request.finish_reason is not None:
                del self._followed[number]
            elif request.num_generated == told:
                continue
            else:
                self._followed[number] = (request, news, request.num_generated)
            news(request)
        self.told()

    def _end(self) -> None:
        """Nothing more will come: end all requests, and say so."""
        while self._todo:
            with suppress(Exception):  # after a failure anything may be amiss; the others must hear of it all the same
                self._todo.popleft()()  # those who asked hear that the pump has stopped
        for work in [*self._works, *self._begun]:
            with suppress(Exception):
                self._leave(work)
            work.ended(None, self.stopped())
        for request, news, _ in list(self._followed.values()):
            try:
                self.engine.cancel(request)
            except Exception:
                request.finish_reason = "error"
            news(request)
        self._followed.clear()
        self.told()


def _nobody() -> None:
    """Told of the news of a step, where nobody wants to hear of them at once."""
