"""Ranks as the engine's process sees them: a worker in a thread of this process, or one behind a connection."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import cached_property
from queue import SimpleQueue
from time import monotonic
from typing import Protocol

from sporelm.engine.ranks.message_handler import MessageHandler, OpenedRank
from sporelm.engine.ranks.messages import (
    Close,
    Done,
    Failed,
    Heartbeat,
    Message,
    RankReady,
    Reply,
    Request,
    decode_reply,
    encode,
    make_failure,
    to_error,
)
from sporelm.engine.ranks.transport import Connection, ConnectionLost
from sporelm.errors import RankLost, SporeError

STALL_SECONDS = 3.0  # without a sign of life: a process that is stopped, or a host that has vanished
START_STALL_SECONDS = 30.0  # the same while it starts: no thread of it runs while it links a large library, as of torch
POLL_SECONDS = 0.25
CLOSE_SECONDS = 3.0

OnLost = Callable[[str], None]  # gets the reason
ExplainEnd = Callable[[], str]


class Envelope:
    """A message that is encoded when it is first sent, and once for all ranks."""

    def __init__(self, message: Request) -> None:
        self.message = message

    @cached_property
    def payload(self) -> bytes:
        return encode(self.message)


class Rank(Protocol):
    """A rank that carries out messages in their order."""

    @property
    def name(self) -> str: ...

    def send(self, envelope: Envelope) -> "Future[Reply]":
        """Send a message. The future raises the error that it caused, or RankLost."""

    def watch(self, on_lost: OnLost) -> None:
        """Call `on_lost` with the reason, in any thread, when the rank can carry out no more messages."""

    def lose(self, reason: str) -> None:
        """Give the rank up: all its futures raise RankLost now, and it leaves its waits for other ranks. Any thread may
        call this; only the first reason counts."""

    def begin_close(self) -> None:
        """Ask the rank to end, and do not wait for it."""

    def close(self) -> None:
        """End the rank. Messages that wait raise RankLost. Closing again does nothing."""


class LosableRank:
    """A rank with replies that it owes, until it is lost.

    lost   the reason, once it is lost
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: str | None = None
        self._replies: deque[Future[Reply]] = deque()
        self._changing = threading.Lock()

    def _mark_lost(self, reason: str) -> "list[Future[Reply]] | None":
        """Mark the rank as lost; return the replies that it owed. Return None if it was lost before."""
        with self._changing:
            if self.lost is not None:
                return None
            self.lost = f"{self.name}: {reason}"
            replies, self._replies = list(self._replies), deque()
            return replies


class ThreadRank(LosableRank):
    """A worker in a thread of this process."""

    def __init__(self, name: str, open_worker: Callable[[], OpenedRank]) -> None:
        """Open the worker in its thread; `wait_until_open` waits for it."""
        super().__init__(name)
        self._messages: SimpleQueue[tuple[Request, Future[Reply]] | None] = SimpleQueue()
        self._rank: OpenedRank | None = None
        self._is_open: Future[None] = Future()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, args=(open_worker,), name=name, daemon=True)
        self._thread.start()

    def wait_until_open(self) -> None:
        """Wait for the worker. Raises the error that opening it has raised."""
        self._is_open.result()

    def send(self, envelope: Envelope) -> "Future[Reply]":
        """Queue a message for the thread."""
        reply: Future[Reply] = Future()
        with self._changing:
            reason = f"{self.name} is closed" if self._is_closed else self.lost
            if reason is None:
                self._replies.append(reply)
                self._messages.put((envelope.message, reply))
        if reason is not None:
            reply.set_exception(RankLost(reason))
        return reply

    def watch(self, on_lost: OnLost) -> None:
        """Do nothing: a thread does not end by itself."""

    def lose(self, reason: str) -> None:
        """Let all messages raise RankLost, and abort the groups that the worker is in."""
        replies = self._mark_lost(reason)
        if replies is None:
            return
        if self._rank is not None:
            self._rank.abort()
        for reply in replies:
            _set_error(reply, RankLost(self.lost))

    def begin_close(self) -> None:
        """Let the thread end after the messages that it has."""
        with self._changing:
            if not self._is_closed:
                self._is_closed = True
                self._messages.put(None)

    def close(self) -> None:
        """End the thread after the message that it carries out, and free the worker."""
        self.begin_close()
        self._thread.join()

    def _run(self, open_worker: Callable[[], OpenedRank]) -> None:
        try:
            self._rank = opened = open_worker()
            handler = MessageHandler(opened.worker)
        except BaseException as error:
            self._is_open.set_exception(error)
            return
        self._is_open.set_result(None)
        try:
            with handler.worker.device.context.lock():
                while (item := self._messages.get()) is not None:
                    request, reply = item
                    if self.lost is None:
                        self._carry_out(handler, request, reply)
                    del item, request, reply
        finally:
            opened.close()

    def _carry_out(self, handler: MessageHandler, request: Request, reply: "Future[Reply]") -> None:
        result: Reply | None = None
        failure: BaseException | None = None
        try:
            begun = handler.handle(request)
            result = begun() if callable(begun) else begun
        except BaseException as error:
            failure = error
        with self._changing:
            if reply not in self._replies:  # it was given up meanwhile
                return
            self._replies.remove(reply)
        if failure is not None:
            _set_error(reply, failure)
        else:
            assert result is not None
            with suppress(InvalidStateError):
                reply.set_result(result)


def _set_error(reply: "Future[Reply]", error: BaseException) -> None:
    with suppress(InvalidStateError):  # it has a result already
        reply.set_exception(error)


class ProcessRank(LosableRank):
    """A worker in another process, behind a connection. A thread receives its replies and signs of life."""

    def __init__(self, name: str, connection: Connection, explain_end: ExplainEnd | None = None) -> None:
        """`explain_end` returns how the process has ended, or "", once its connection is lost."""
        super().__init__(name)
        self._explain_end = explain_end
        self.connection = connection
        self.phase = ""  # of loading
        self.has_ended = False  # in good order, after `close`
        self._is_ready = False  # its weights are loaded
        self._sending = threading.Lock()  # replies come in the order of the messages
        self._on_lost: list[OnLost] = []
        self._closing: Future[Reply] | None = None
        self._close_deadline = 0.0
        self._thread = threading.Thread(target=self._receive, name=f"{name}-replies", daemon=True)
        self._thread.start()

    def send(self, envelope: Envelope) -> "Future[Reply]":
        """Send a message to the process."""
        reply: Future[Reply] = Future()
        payload = envelope.payload
        with self._sending:
            with self._changing:
                if self.lost is not None:
                    reply.set_exception(RankLost(self.lost))
                    return reply
                self._replies.append(reply)
            try:
                self.connection.send(payload)
            except ConnectionLost as reason:
                self._lose_connection(reason)
        return reply

    def watch(self, on_lost: OnLost) -> None:
        """Call `on_lost` once the process has ended, stalls, or cannot be reached; at once if it is lost already."""
        with self._changing:
            if self.lost is None:
                self._on_lost.append(on_lost)
                return
        on_lost(self.lost)

    def lose(self, reason: str) -> None:
        """Give the process up: its connection ends, at which it leaves its waits. Any thread may call this."""
        replies = self._mark_lost(reason)
        if replies is None:
            return
        assert self.lost is not None
        callbacks, self._on_lost = self._on_lost, []  # `watch` adds none to a rank that is lost
        self.connection.shut_down()
        for call in callbacks:
            call(self.lost)
        for reply in replies:
            _set_error(reply, RankLost(self.lost))

    def _lose_connection(self, reason: Exception) -> None:
        """Give the process up, and tell how it has ended, if that is known."""
        end = self._explain_end() if self._explain_end is not None and self.lost is None else ""
        self.lose(end or str(reason))

    def begin_close(self) -> None:
        """Ask the process to end."""
        if self._closing is None and self.lost is None:
            self._close_deadline = monotonic() + CLOSE_SECONDS
            self._closing = self.send(Envelope(Close()))

    def close(self) -> None:
        """End the process, or wait CLOSE_SECONDS for that since `begin_close`; then close the connection."""
        self.begin_close()
        if self._closing is not None:
            with suppress(Exception):
                self._closing.result(max(0.0, self._close_deadline - monotonic()))
                self.has_ended = True
        self.lose("closed")
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_SECONDS)
            self.connection.close()

    def _receive(self) -> None:
        silent_seconds, checked = 0.0, monotonic()
        heard = self.connection.last_received
        try:
            while True:
                payload = self.connection.receive(POLL_SECONDS)
                now = monotonic()
                if payload is not None:
                    self._take(decode_reply(payload))
                if self.connection.last_received != heard:
                    heard, silent_seconds = self.connection.last_received, 0.0
                else:  # a pause of this process, such as a suspended laptop, is not a silence of the other one
                    silent_seconds += min(now - checked, 2 * POLL_SECONDS)
                checked = now
                max_seconds = STALL_SECONDS if self._is_ready else START_STALL_SECONDS
                if silent_seconds > max_seconds:
                    self.lose(f"no sign of life for {max_seconds:g} seconds")
                    return
        except ConnectionLost as reason:
            self._lose_connection(reason)
        except SporeError as reason:
            self.lose(str(reason))
        except BaseException as error:
            self.lose(f"{type(error).__name__}: {error}")
            raise

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Heartbeat):
            self.phase = reply.phase
            return
        self._is_ready = self._is_ready or isinstance(reply, RankReady)
        with self._changing:
            future = self._replies.popleft() if self._replies else None
        if future is None:
            self.lose("sent a reply to no message")
        elif isinstance(reply, Failed):
            _set_error(future, to_error(reply, self.name))
        else:
            future.set_result(reply)


class RankEndpoint:
    """The other end of a `ProcessRank`: sends replies and signs of life."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.phase = ""

    def reply(self, message: Message) -> None:
        """Send a reply. Raises ConnectionLost."""
        self.connection.send(encode(message))

    def fail(self, error: BaseException) -> None:
        """Reply that a message failed. Raises ConnectionLost."""
        self.reply(make_failure(error))

    def beat(self) -> None:
        """Send a sign of life. Raises ConnectionLost."""
        self.reply(Heartbeat(self.phase))

    def finish(self) -> None:
        """Reply to Close."""
        with suppress(ConnectionLost):
            self.reply(Done())
