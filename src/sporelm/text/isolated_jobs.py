"""The code of an `IsolatedProcess`: it renders templates and tries grammars, each within a CPU time and memory.

A job that exceeds its time ends the process: by a timer of the system, or a thread that watches where there is none.
"""

import json
import marshal
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread, stack_size
from typing import Any, BinaryIO

from sporelm.errors import SporeError
from sporelm.text.isolated_process import LENGTH, OUT_OF_TIME

NICENESS = 10
STACK_BYTES = 64 << 20  # of the thread that works: compilers of grammars call themselves as deep as a grammar is
MEMORY_BYTES = 512 << 20  # that a job may add to what the process has
WATCH_SECONDS = 0.01  # between two looks at the clock where the system has no timer

Run = Callable[..., Any]
Reply = tuple[str, str, Any]  # the name of an error, or "", its message, and a value that JSON can have


def main() -> None:
    """Serve the jobs that come over standard input, until it ends."""
    jobs, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # nothing that prints mixes with the replies
    if hasattr(os, "nice"):
        with suppress(OSError):
            os.nice(NICENESS)
    _forbid_core_files()
    stack_size(STACK_BYTES)
    thread = Thread(target=_serve, args=(jobs, replies), daemon=True)
    thread.start()
    thread.join()


def _serve(jobs: BinaryIO, replies: BinaryIO) -> None:
    subjects: dict[int, Run] = {}
    broken: dict[int, Reply] = {}
    while (message := _message(jobs)) is not None:
        name, *rest = message
        if name == "load":
            kind, key, data = rest
            try:
                subjects[key] = LOADERS[kind](*data)
            except Exception as error:  # told to those whose jobs need it
                broken[key] = _failed(error)
            continue
        key, seconds, arguments = rest
        if key in broken:
            reply = broken[key]
        else:
            with _limited(seconds):
                reply = _result(subjects[key], arguments)
        data = json.dumps(reply).encode()
        replies.write(LENGTH.pack(len(data)) + data)
        replies.flush()
    os._exit(0)


def _result(run: Run, arguments: tuple[Any, ...]) -> Reply:
    try:
        return "", "", run(*arguments)
    except MemoryError:
        return "RequestError", "more memory is needed than is allowed", None
    except Exception as error:
        return _failed(error)


def _failed(error: Exception) -> Reply:
    return type(error).__name__, str(error) if isinstance(error, SporeError) else str(error)[:200], None


def _message(jobs: BinaryIO) -> Any:
    """The next message of the owner; None at the end."""
    head = jobs.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = jobs.read(length)
    return marshal.loads(data) if len(data) == length else None


def load_template(source: str, special_tokens: dict[str, str], label: str, dated: bool = False) -> Run:
    """A chat template; a job renders one chat."""
    from sporelm.text.template import Chat, ChatTemplate, TemplateStopped, received

    template = ChatTemplate(source, special_tokens, label=label, dated=dated)

    def render(seconds: float, *chat: Any) -> tuple[Any, str, float]:
        """The spans; why there are none, if the rendering was stopped; its CPU time in seconds."""
        began = time.thread_time()
        try:
            spans, stopped = template.render_here(Chat(*received(list(chat))), seconds).spans, ""
        except TemplateStopped as reason:
            spans, stopped = (), str(reason)
        return spans, stopped, time.thread_time() - began

    return render


def load_vocabulary(
    tokens: list[bytes], eos_id: int, bos_id: int | None, special_ids: list[int], stop_ids: list[int]
) -> Run:
    """A vocabulary; a job compiles a grammar for it and takes its first step."""
    from sporelm.text.grammar import PlainVocabulary, first_matcher

    words, ends = PlainVocabulary(tokens, eos_id, bos_id, special_ids).words(stop_ids), frozenset(stop_ids)

    def compile_grammar(source: str) -> None:
        first_matcher(words, source, ends, tokens)

    return compile_grammar


LOADERS: dict[str, Callable[..., Run]] = {"template": load_template, "vocabulary": load_vocabulary}


def _forbid_core_files() -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End the process where what is inside takes more than its CPU time, or have it fail to get more memory."""
    with _limited_memory(), _limited_time(seconds):
        yield


@contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)  # nobody handles SIGPROF, so it ends the process
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        return
    done, until = Event(), time.process_time() + seconds

    def watch() -> None:
        while not done.wait(WATCH_SECONDS):
            if time.process_time() > until:
                os._exit(OUT_OF_TIME)

    before = stack_size(0)
    Thread(target=watch, daemon=True).start()
    stack_size(before)
    try:
        yield
    finally:
        done.set()


@contextmanager
def _limited_memory() -> Iterator[None]:
    if sys.platform != "linux":
        yield
        return
    import resource

    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = taken + MEMORY_BYTES
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
