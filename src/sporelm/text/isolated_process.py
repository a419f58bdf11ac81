"""A child process for work whose time cannot be foreseen: it is killed when a job exceeds its budget.

Threads of one interpreter share its lock, and native code cannot be interrupted in a thread. So a server renders slow
templates and tries new grammars in a process of low priority: the engine and the event loop feel nothing of it.
`isolated_jobs` is the code of the child.
"""

import json
import marshal
import os
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread, Timer, current_thread
from typing import Any

from sporelm.errors import BackendError, ModelFileError, QueueFull, RequestError

MAX_WAITING = 256  # jobs of one process that wait; more are refused
STALL_SECONDS = 60.0  # of the wall clock, after which a job is stopped that neither ends nor uses its CPU time
OUT_OF_TIME = 75  # exit code of a child that stopped itself, where no signal does
MAX_REPLY_BYTES = 256 << 20  # of a reply; a child that announces more has been taken over or is broken
LENGTH = struct.Struct("<I")  # of the frame that follows; frames go over the child's standard input and output

# The child sees what this process imports from, and no site directory is looked through again.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from sporelm.text.isolated_jobs import main; main()"


class OverBudget(Exception):
    """A job used up its CPU time, and the process was killed."""


class ProcessDied(Exception):
    """The process ended in the middle of a job: more memory or stack was needed than it may have."""


@dataclass(frozen=True)
class Subject:
    """Data that jobs refer to by `key`, sent once to each child: the source of a template, the tokens of a vocabulary.

    kind   the name of its loader in `isolated_jobs`
    data   its arguments, called when a child needs them: plain values that `marshal` writes
    """

    key: int
    kind: str
    data: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class _Job:
    subject: Subject
    arguments: tuple[Any, ...]
    seconds: float
    result: "Future[Any]"


class IsolatedProcess:
    """A child process that runs one job after the other. It starts with the first job, and again after it was killed.

    Any thread may submit jobs. The owner closes it; a child whose owner has died ends by itself.
    """

    def __init__(self, name: str) -> None:
        """`name` is that of the thread that talks to the child."""
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[int] = set()  # keys of subjects that the child has
        self._closed = False
        self._owner = os.getpid()

    def submit(self, subject: Subject, arguments: tuple[Any, ...], seconds: float) -> "Future[Any]":
        """Queue a job on a subject; the result is what the job returns.

        arguments   plain values that `marshal` writes
        seconds     of CPU that the job may take

        The result raises OverBudget or ProcessDied for a job that was stopped, RequestError or ModelFileError as the
        job does, BackendError where no child can be started or after `close`. Raises QueueFull.
        """
        result: Future[Any] = Future()
        with self._changed:
            if os.getpid() != self._owner:  # after a fork: the child and the thread are the parent's
                self._owner, self._thread, self._process = os.getpid(), None, None
                self._jobs.clear()
                self._known.clear()
            if self._closed:
                raise BackendError("the model was closed; open it again")
            if len(self._jobs) >= MAX_WAITING:
                raise QueueFull(f"{MAX_WAITING} jobs wait for the {self._name} process already: try again later")
            self._jobs.append(_Job(subject, arguments, seconds, result))
            if self._thread is None:
                self._thread = Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return result

    def run(self, subject: Subject, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Submit a job, and wait for its result. Raises as `submit` and its result do."""
        return self.submit(subject, arguments, seconds).result()

    @property
    def pid(self) -> int | None:
        """The child's, while there is one."""
        process = self._process
        return process.pid if process is not None else None

    def close(self) -> None:
        """Kill the child, and end the thread. Waiting jobs raise BackendError. Closing again does nothing."""
        with self._changed:
            self._closed = True
            thread, process = self._thread, self._process
            self._changed.notify()
        if os.getpid() != self._owner:
            return
        if process is not None:
            process.kill()
        if thread is not None and thread is not current_thread():
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._closed:
                    break
                job = self._jobs.popleft()
            if not job.result.set_running_or_notify_cancel():
                continue
            try:
                job.result.set_result(self._run(job))
            except BaseException as error:
                job.result.set_exception(error)
            del job  # not kept until the next one comes
        self._end()
        for job in self._jobs:
            if job.result.set_running_or_notify_cancel():
                job.result.set_exception(BackendError("the model was closed; open it again"))
        self._jobs.clear()

    def _run(self, job: _Job) -> Any:
        process = self._started()
        stalled = Event()

        def stop() -> None:
            stalled.set()  # before the kill: the end of the child's output is seen at once
            process.kill()

        timer = Timer(STALL_SECONDS, stop)
        timer.daemon = True
        timer.start()
        try:
            if job.subject.key not in self._known:
                self._send(process, ("load", job.subject.kind, job.subject.key, job.subject.data()))
                self._known.add(job.subject.key)
            self._send(process, ("run", job.subject.key, job.seconds, job.arguments))
            reply = _received(process)
        except (OSError, EOFError):
            raise self._failure(stalled_out=stalled.is_set()) from None
        except BaseException:
            self._end()
            raise
        finally:
            timer.cancel()
        error, message, value = reply
        if not error:
            return value
        kind = {"RequestError": RequestError, "ModelFileError": ModelFileError}.get(error)
        if kind is None:
            raise BackendError(f"a job of the {self._name} process failed: {error}: {message}")
        raise kind(message)

    def _started(self) -> "subprocess.Popen[bytes]":
        """The child, started if there is none. Raises BackendError."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        # Neither a terminal's Ctrl-C nor its hang-up goes to the child: it ends with its owner.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
        command = [sys.executable, "-S", "-P", "-c", _START, json.dumps(sys.path)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **apart
            )
        except OSError as reason:
            raise BackendError(f"cannot start the {self._name} process: {reason}") from None
        with self._changed:
            self._process = process
            if self._closed:
                process.kill()
        return process

    def _send(self, process: "subprocess.Popen[bytes]", message: tuple[Any, ...]) -> None:
        data = marshal.dumps(message)
        assert process.stdin is not None
        process.stdin.write(LENGTH.pack(len(data)))
        process.stdin.write(data)
        process.stdin.flush()

    def _failure(self, *, stalled_out: bool) -> Exception:
        """Why the child has ended in the middle of a job."""
        process = self._process
        assert process is not None
        closed = self._closed
        if process.poll() is None:
            try:
                process.wait(1.0)  # its output has ended, so it is about to
            except subprocess.TimeoutExpired:
                process.kill()
        code = process.wait()
        self._end()
        if closed:
            return BackendError("the model was closed; open it again")
        used_up = os.name == "posix" and code in (-signal.SIGPROF, -signal.SIGXCPU)  # of the job, of `ulimit -t`
        if code == OUT_OF_TIME or stalled_out or used_up:
            return OverBudget()
        return ProcessDied(f"exit code {code}")

    def _end(self) -> None:
        """Kill the child, if there is one, and free what belongs to it."""
        with self._changed:
            process, self._process = self._process, None
            self._known.clear()
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not written is not wanted any more
                    pipe.close()


def _received(process: "subprocess.Popen[bytes]") -> tuple[str, str, Any]:
    """The child's next reply: the name of an error, or "", its message, and the value. It is JSON, which cannot do harm
    even if a template or a grammar has taken over the child. Raises EOFError if the child has ended, or sends no reply,
    or one longer than MAX_REPLY_BYTES.
    """
    assert process.stdout is not None
    head = process.stdout.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    if length > MAX_REPLY_BYTES:
        raise EOFError
    data = process.stdout.read(length)
    try:
        error, message, value = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        raise EOFError from None
    return str(error), str(message), value
