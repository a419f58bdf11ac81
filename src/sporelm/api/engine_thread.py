"""The thread that steps an engine on behalf of event loops, which must not block."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sporelm.api.cooperative import CooperativeTask
from sporelm.engine import Engine, Request
from sporelm.engine.inference_engine import InferenceEngine
from sporelm.errors import BackendError, QueueFull

MAX_FAILED_STEPS = 3  # consecutive failed steps after which the thread gives up

OnProgress = Callable[[Request], None]
OnDone = Callable[[Any, BaseException | None], None]  # gets the result of a task, or its error


@dataclass(eq=False)
class EngineTask:
    """A cooperative task, and the callback for its end."""

    steps: CooperativeTask[Any]
    on_done: OnDone


class EngineThread:
    """Steps the engine in its own thread while there are requests.

    Submitted calls run between two steps, so that callers do not wait for a step. Between two steps all cooperative
    tasks go on. `on_progress(request)` is called from this thread when a request has new tokens or has
    ended. A failed step is retried; after MAX_FAILED_STEPS in a row every request ends, the thread stops, and `failure`
    is the error.
    """

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.on_step: Callable[[], None] = _ignore  # called after the callbacks of each step
        self._calls: deque[Callable[[], None]] = deque()
        self._tasks: list[EngineTask] = []  # in the order in which they were submitted
        self._unfinished_tasks: set[EngineTask] = set()
        self._requests: dict[int, tuple[Request, OnProgress, int]] = {}  # by id, with the number of reported tokens
        self._wake_up = threading.Condition()
        self._closing = False
        self._failed_steps = 0  # consecutive
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Run a call between two steps. Returns at once. Raises BackendError if the thread has stopped."""
        with self._wake_up:
            if self._closing or self.failure is not None:
                raise self.stopped_error()
            self._calls.append(call)
            self._wake_up.notify()

    def run_between_steps(self, call: Callable[[], None]) -> None:
        """Submit a call and wait for it; raises the call's error. Must not be called from the engine's thread."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                call()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.submit(run)
        done.result()

    def submit_task(self, task: EngineTask) -> None:
        """Run a task step by step. Returns at once.

        Raises BackendError if the thread has stopped, QueueFull if as many tasks as requests may wait are unfinished.
        """
        limit = self.engine.max_waiting
        if len(self._unfinished_tasks) >= limit:
            raise QueueFull(f"{limit} lists of texts are in progress, which is the limit: try again later")
        self._unfinished_tasks.add(task)  # before it can end
        try:
            self.submit(lambda: self._tasks.append(task))
        except BackendError:
            self._unfinished_tasks.discard(task)
            raise

    def cancel_task(self, task: EngineTask) -> None:
        """Cancel a task soon and free its pages; its callback is not called. Returns at once."""
        with self._wake_up:
            if not self._closing and self.failure is None:
                self._calls.append(lambda: self._drop_task(task))
                self._wake_up.notify()

    def stopped_error(self) -> BackendError:
        """Return the error for calls and requests after the thread has stopped."""
        reason = f" failed: {self.failure}" if self.failure is not None else " was closed"
        return BackendError(f"the engine{reason}; open the model again")

    @property
    def generating_engine(self) -> Engine:
        """The engine of the requests, which `LLM.prepare_generation` makes for no encoder."""
        assert isinstance(self.engine, Engine)
        return self.engine

    def add_request(self, request: Request, on_progress: OnProgress) -> None:
        """Add a request to the engine, from a call between two steps.

        Raises like `Engine.add`, and BackendError if the thread has stopped.
        """
        if self._closing or self.failure is not None:
            raise self.stopped_error()
        self.generating_engine.add(request)
        self._requests[request.id] = (request, on_progress, request.num_generated)

    def cancel(self, request: Request) -> None:
        """Cancel a request soon. Returns at once; does nothing if the thread has stopped."""
        with self._wake_up:
            if not self._closing and self.failure is None:
                self._calls.append(lambda: self.generating_engine.cancel(request))
                self._wake_up.notify()

    def close(self) -> None:
        """Cancel all requests and stop the thread, after the running step."""
        with self._wake_up:
            self._closing = True
            self._wake_up.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                while self._calls:
                    self._calls.popleft()()
                self._advance_tasks()
                if not self.engine.is_idle:
                    self._step_engine()
                self._report_progress()
        except BaseException as failure:  # reported to all waiting callers
            with self._wake_up:
                self.failure = failure
        self._stop()

    def _step_engine(self) -> None:
        """Run one engine step. A failure, such as a brief shortage of memory, is raised only after several in a row."""
        try:
            self.engine.step()
        except Exception:
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise
        else:
            self._failed_steps = 0

    def _advance_tasks(self) -> None:
        """Let each task queue its next work, or end. An error is passed to the task's callback."""
        for task in list(self._tasks):
            try:
                next(task.steps)
            except StopIteration as end:
                self._end_task(task, end.value, None)
            except BaseException as error:
                self._end_task(task, None, error)

    def _end_task(self, task: EngineTask, result: Any, error: BaseException | None) -> None:
        self._tasks.remove(task)
        self._unfinished_tasks.discard(task)
        task.on_done(result, error)

    def _drop_task(self, task: EngineTask) -> None:
        self._unfinished_tasks.discard(task)
        if task in self._tasks:
            self._tasks.remove(task)
        task.steps.close()

    def _wait(self) -> bool:
        """Sleep until there is work; return False if the thread is to stop."""
        with self._wake_up:
            while not (self._closing or self._calls or self._requests or self._tasks):
                self._wake_up.wait()
            return not self._closing

    def _report_progress(self) -> None:
        for request_id, (request, on_progress, num_reported) in list(self._requests.items()):
            if request.finish_reason is not None:
                del self._requests[request_id]
            elif request.num_generated == num_reported:
                continue
            else:
                self._requests[request_id] = (request, on_progress, request.num_generated)
            on_progress(request)
        self.on_step()

    def _stop(self) -> None:
        """End all requests and tasks, and report their ends."""
        while self._calls:
            with suppress(Exception):  # after a failure any call may fail too; the others must still run
                self._calls.popleft()()  # a call that adds a request reports that the thread has stopped
        for task in list(self._tasks):
            with suppress(Exception):
                self._drop_task(task)
            task.on_done(None, self.stopped_error())
        for request, on_progress, _ in list(self._requests.values()):
            try:
                self.generating_engine.cancel(request)
            except Exception:
                request.finish_reason = "error"
            on_progress(request)
        self._requests.clear()
        self.on_step()


def _ignore() -> None:
    """Do nothing: the default of `EngineThread.on_step`."""
