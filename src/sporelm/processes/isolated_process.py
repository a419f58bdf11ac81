"""A child process for work of unpredictable duration: it is killed when a job exceeds its budget.

Threads of one interpreter share its lock, and native code cannot be interrupted in a thread. So a server renders slow
templates, tries new grammars and decodes pictures in processes of low priority, which do not slow down the engine and
the event loop.
`isolated_worker` is the code of the child.
"""

import json
import marshal
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread, Timer, current_thread
from typing import IO, Any

from sporelm.errors import BackendError, ModelFileError, QueueFull, RequestError
from sporelm.processes.tenant_queue import TenantQueue

OUT_OF_TIME = 75  # exit code of a child that stopped itself, where no signal does
MAX_REPLY_BYTES = 256 << 20  # a child that announces a longer reply has been taken over or is broken
LENGTH = struct.Struct("<I")  # of the following frame; frames go over the child's standard input and output
REPLY_LENGTHS = struct.Struct("<II")  # of a reply's JSON, and of the bytes after it

# The child has the module search path of this process; it does not process site directories again.
_WORKER = "sporelm.processes.isolated_worker"
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {_WORKER} import main; main()"


class OverBudget(Exception):
    """A job used up its CPU time, and the process was killed."""


class ProcessDied(Exception):
    """The process ended in the middle of a job: it needed more memory or stack than it may use."""


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of an `IsolatedProcess`.

    job_memory_bytes   that a job may allocate in addition to the process's memory (Linux only)
    stall_seconds      of the wall clock; then a job that neither ends nor uses up its CPU time is stopped
    max_waiting_jobs   more are refused
    max_result_bytes   of the bytes of a `BinaryResult`
    """

    job_memory_bytes: int = 512 << 20
    stall_seconds: float = 60.0
    max_waiting_jobs: int = 256
    max_result_bytes: int = 0


@dataclass(frozen=True, eq=False)
class BinaryResult:
    """The result of a job that returns bytes: they are sent as they are, after the `value`, which is sent as JSON.

    In the child `parts` are any number of buffers; the owner gets them joined into one bytearray.
    """

    value: Any
    parts: Sequence[bytes | bytearray | memoryview]


@dataclass(frozen=True)
class SharedResource:
    """Data that jobs refer to by `key`, sent once to each child: the source of a template, the tokens of a vocabulary.

    loader   the function that makes its job in the child, as "module:function"
    data     returns the loader's arguments, when a child needs them: plain values that `marshal` writes
    """

    key: int
    loader: str
    data: Callable[[], tuple[Any, ...]]


@dataclass(frozen=True)
class _Job:
    resource: SharedResource
    arguments: tuple[Any, ...]
    seconds: float
    result: "Future[Any]"


class IsolatedProcess:
    """A child process that runs one job after the other, for tenants in turns. It starts with the first job, and
    starts again after it was killed.

    Any thread may submit jobs. The owner closes it; a child whose owner has died ends by itself.
    """

    def __init__(
        self,
        name: str,
        limits: ProcessLimits | None = None,
        closed_message: str = "the model was closed; open it again",
    ) -> None:
        """`name` is the name of the thread that talks to the child; `closed_message` the error of jobs that the end of
        this process prevents."""
        self.limits = limits or ProcessLimits()
        self._name = name
        self._closed_message = closed_message
        self._jobs: TenantQueue[_Job] = TenantQueue()
        self._changed = Condition()
        self._thread: Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded_keys: set[int] = set()  # of resources that the child has
        self._closed = False
        self._owner = os.getpid()

    def submit(
        self, resource: SharedResource, arguments: tuple[Any, ...], seconds: float, tenant: str = ""
    ) -> "Future[Any]":
        """Queue a job on a resource; the future's result is the job's.

        arguments   plain values that `marshal` writes
        seconds     CPU time of the job
        tenant      whose turn the job takes

        The future raises OverBudget or ProcessDied for a job that was stopped, RequestError or ModelFileError as the
        job does, BackendError if no child can be started or after `close`, QueueFull for a job of the tenant with the
        most waiting jobs, to make room for another tenant's. Raises QueueFull.
        """
        result: Future[Any] = Future()
        with self._changed:
            if os.getpid() != self._owner:  # after a fork: the child and the thread are the parent's
                self._owner = os.getpid()
                self._thread = None
                self._process = None
                self._jobs.clear()
                self._loaded_keys.clear()
            if self._closed:
                raise BackendError(self._closed_message)
            evicted = None
            if len(self._jobs) >= self.limits.max_waiting_jobs:
                evicted = self._jobs.evict_for(tenant)
                if evicted is None:
                    raise self._make_queue_error()
            self._jobs.push(_Job(resource, arguments, seconds, result), tenant)
            if self._thread is None:
                self._thread = Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        if evicted is not None and evicted.result.set_running_or_notify_cancel():
            evicted.result.set_exception(self._make_queue_error())
        return result

    def run(self, resource: SharedResource, arguments: tuple[Any, ...], seconds: float) -> Any:
        """Submit a job, and wait for its result. Raises as `submit` and its future do."""
        return self.submit(resource, arguments, seconds).result()

    def _make_queue_error(self) -> QueueFull:
        count = self.limits.max_waiting_jobs
        return QueueFull(f"{count} jobs wait for the {self._name} process already: try again later")

    @property
    def pid(self) -> int | None:
        """The process id of the child, while there is one."""
        process = self._process
        return process.pid if process is not None else None

    def kill_child(self) -> None:
        """Kill the child, if there is one: a job that it runs raises ProcessDied, and the next job starts another."""
        process = self._process
        if process is not None and os.getpid() == self._owner:
            process.kill()

    def close(self) -> None:
        """Kill the child, and end the thread. Waiting jobs raise BackendError. Closing again does nothing."""
        with self._changed:
            self._closed = True
            thread = self._thread
            process = self._process
            self._changed.notify()
        if os.getpid() != self._owner:
            return
        if process is not None:
            process.kill()
        if thread is not None and thread is not current_thread():
            thread.join()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not len(self._jobs) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    break
                job = self._jobs.pop()
            if not job.result.set_running_or_notify_cancel():
                continue
            try:
                job.result.set_result(self._run(job))
            except BaseException as error:
                job.result.set_exception(error)
            del job  # not kept alive until the next job
        self._end()
        with self._changed:
            waiting = self._jobs.clear()
        for job in waiting:
            if job.result.set_running_or_notify_cancel():
                job.result.set_exception(BackendError(self._closed_message))

    def _run(self, job: _Job) -> Any:
        process = self._get_process()
        stalled = Event()

        def stop() -> None:
            stalled.set()  # before the kill: the end of the child's output is seen at once
            process.kill()

        timer = Timer(self.limits.stall_seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            if job.resource.key not in self._loaded_keys:
                self._send(process, ("load", job.resource.loader, job.resource.key, job.resource.data()))
                self._loaded_keys.add(job.resource.key)
            self._send(process, ("run", job.resource.key, job.seconds, self.limits.job_memory_bytes, job.arguments))
            reply = _read_reply(process, self.limits.max_result_bytes)
        except (OSError, EOFError):
            raise self._explain_end(has_stalled=stalled.is_set()) from None
        except BaseException:
            self._end()
            raise
        finally:
            timer.cancel()
        error, message, value = reply
        if not error:
            return value
        error_type = {"RequestError": RequestError, "ModelFileError": ModelFileError}.get(error)
        if error_type is None:
            raise BackendError(f"a job of the {self._name} process failed: {error}: {message}")
        raise error_type(message)

    def _get_process(self) -> "subprocess.Popen[bytes]":
        """Return the child, which is started if there is none. Raises BackendError."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        # The child gets neither a terminal's Ctrl-C nor its hang-up: it ends with its owner.
        detached: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            detached = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
        command = [sys.executable, "-S", "-P", "-c", _START, json.dumps(sys.path)]
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, **detached
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

    def _explain_end(self, *, has_stalled: bool) -> Exception:
        """Return the error for a child that ended in the middle of a job."""
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
            return BackendError(self._closed_message)
        # SIGPROF is the limit of the job, SIGXCPU that of `ulimit -t`.
        is_out_of_time = os.name == "posix" and code in (-signal.SIGPROF, -signal.SIGXCPU)
        if code == OUT_OF_TIME or has_stalled or is_out_of_time:
            return OverBudget()
        return ProcessDied(f"exit code {code}")

    def _end(self) -> None:
        """Kill the child, if there is one, and close its pipes."""
        with self._changed:
            process = self._process
            self._process = None
            self._loaded_keys.clear()
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unwritten data is dropped
                    pipe.close()


def _read_reply(process: "subprocess.Popen[bytes]", max_result_bytes: int) -> tuple[str, str, Any]:
    """Return the child's next reply: the name of an error, or "", its message, and the value. It is JSON and bytes,
    which are harmless even if a template, a grammar or a picture has taken over the child. Raises EOFError if the child
    has ended, or sends no valid reply, or one longer than its limit.
    """
    assert process.stdout is not None
    head = process.stdout.read(REPLY_LENGTHS.size)
    if len(head) < REPLY_LENGTHS.size:
        raise EOFError
    text_length, result_length = REPLY_LENGTHS.unpack(head)
    if text_length > MAX_REPLY_BYTES or result_length > max_result_bytes:
        raise EOFError
    text = process.stdout.read(text_length)
    try:
        error, message, value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise EOFError from None
    if result_length:
        value = BinaryResult(value, [_read_exactly(process.stdout, result_length)])
    return str(error), str(message), value


def _read_exactly(stream: IO[bytes], length: int) -> bytearray:
    """Return the next `length` bytes of a buffered stream. Raises EOFError."""
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = stream.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        view = view[count:]
    return data
