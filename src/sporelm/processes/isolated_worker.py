"""The code of an `IsolatedProcess`: it runs jobs, each within limits of CPU time and memory.

A job that exceeds its time ends the process: by a timer of the system, or by a thread where there is no such timer.
"""

import json
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Event, Thread, stack_size
from typing import Any, BinaryIO

from sporelm.errors import SporeError
from sporelm.processes.isolated_process import LENGTH, OUT_OF_TIME, REPLY_LENGTHS, BinaryResult

NICENESS = 10
STACK_BYTES = 64 << 20  # of the thread that runs jobs: compilers of grammars recurse as deep as a grammar is
WATCH_SECONDS = 0.01  # between two checks of the clock where the system has no timer

Job = Callable[..., Any]
JobReply = tuple[str, str, Any]  # the name of an error, or "", its message, and the value: for JSON, or a BinaryResult


def main() -> None:
    """Run the jobs from standard input, until it ends."""
    jobs = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # printed output must not mix with the replies
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICENESS)
    _forbid_core_files()
    stack_size(STACK_BYTES)
    thread = Thread(target=_serve, args=(jobs, replies), daemon=True)
    thread.start()
    thread.join()


def _serve(jobs: BinaryIO, replies: BinaryIO) -> None:
    resources: dict[int, Job] = {}
    failures: dict[int, JobReply] = {}
    while (message := _read_message(jobs)) is not None:
        name, *rest = message
        if name == "load":
            loader, key, data = rest
            try:
                resources[key] = _import(loader)(*data)
            except Exception as error:  # the reply to each job that needs the resource
                failures[key] = _make_error_reply(error)
            continue
        key, seconds, memory_bytes, arguments = rest
        if key in failures:
            reply = failures[key]
        else:
            with _limit(seconds, memory_bytes):
                reply = _run(resources[key], arguments)
        _write_reply(replies, reply)
        del reply, arguments, rest, message  # not kept in memory until the next job
    os._exit(0)


def _write_reply(replies: BinaryIO, reply: JobReply) -> None:
    error, text, value = reply
    parts: Sequence[bytes | bytearray | memoryview] = ()
    if isinstance(value, BinaryResult):
        value, parts = value.value, value.parts
    data = json.dumps((error, text, value)).encode()
    replies.write(REPLY_LENGTHS.pack(len(data), sum(map(len, parts))) + data)
    for part in parts:
        replies.write(part)
    replies.flush()


def _import(loader: str) -> Callable[..., Job]:
    module, _, name = loader.partition(":")
    function: Callable[..., Job] = getattr(import_module(module), name)
    return function


def _run(job: Job, arguments: tuple[Any, ...]) -> JobReply:
    try:
        return "", "", job(*arguments)
    except MemoryError:
        return "RequestError", "more memory is needed than is allowed", None
    except Exception as error:
        return _make_error_reply(error)


def _make_error_reply(error: Exception) -> JobReply:
    return type(error).__name__, str(error) if isinstance(error, SporeError) else str(error)[:200], None


def _read_message(jobs: BinaryIO) -> Any:
    """Return the next message of the owner; None at the end."""
    head = jobs.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = jobs.read(length)
    return marshal.loads(data) if len(data) == length else None


def _forbid_core_files() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def _limit(seconds: float, memory_bytes: int) -> Iterator[None]:
    """End the process if the block takes more than its CPU time; make it fail to allocate more than its memory."""
    with _limit_memory(memory_bytes), _limit_time(seconds):
        yield


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF has no handler, so it ends the process
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        return
    done = Event()
    deadline = time.process_time() + seconds

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            if time.process_time() > deadline:
                os._exit(OUT_OF_TIME)

    previous = stack_size(0)
    Thread(target=watch, daemon=True).start()
    stack_size(previous)
    try:
        yield
    finally:
        done.set()


@contextmanager
def _limit_memory(job_bytes: int) -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + job_bytes
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))
