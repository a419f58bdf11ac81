"""A server that answers as a test has it written down, in a thread of its own."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sporelm.bench.serving.server_target import ServerTarget

CLOSE = "close"  # the connection, when what is written has gone
ABORT = "abort"  # it at once
Part = bytes | float | str  # bytes to write, seconds to wait, CLOSE or ABORT


@dataclass
class RecordedRequest:
    """A request that arrived."""

    line: str
    headers: dict[str, str]
    body: Any

    @property
    def path(self) -> str:
        return self.line.split()[1]

    @property
    def prompt(self) -> str:
        return str(self.body["prompt"] if "prompt" in self.body else self.body["messages"][0]["content"])


Script = Callable[[RecordedRequest], Sequence[Part]]


@dataclass
class ScriptedServer:
    """Where it listens, what it was asked, and over how many connections."""

    port: int = 0
    requests: list[RecordedRequest] = field(default_factory=list)
    num_connections: int = 0
    running: int = 0
    max_running: int = 0

    @property
    def target(self) -> ServerTarget:
        return ServerTarget("http", "127.0.0.1", self.port, f"http://127.0.0.1:{self.port}")

    def prompts(self, new_tokens: int) -> list[str]:
        """The requests for this number of tokens."""
        return [each.prompt for each in self.requests if each.body and each.body.get("max_tokens") == new_tokens]


def reply(status: int, body: Any, kind: str = "application/json", more: str = "") -> bytes:
    """A whole answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A chunk of a body; of nothing, its end."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """A server-sent event as a chunk."""
    return chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")


def piece(text: str | None, finish: str | None = None) -> bytes:
    """A chat's event with a text."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


DONE = event(b"[DONE]") + chunk(b"")


def usage(prompt: int, made: int, **more: Any) -> bytes:
    """The event before the last."""
    told = {"prompt_tokens": prompt, "completion_tokens": made, **more}
    return event({"choices": [], "usage": told})


def answered(asked: RecordedRequest, wait: float = 0.0) -> list[Part]:
    """A correct reply: a token for each word of a prompt and six for the template, one text per token."""
    if asked.path.endswith("/models"):
        return [reply(200, {"data": [{"id": "tiny"}]})]
    made = asked.body.get("max_tokens") or asked.body["max_completion_tokens"]
    parts: list[Part] = [STREAM + piece("")]
    for number in range(made):
        parts += [wait, piece(f"t{number}", "length" if number + 1 == made else None)]
    return [*parts, usage(6 + len(asked.prompt.split()), made), DONE]


@contextmanager
def scripted(script: Script = answered) -> Iterator[ScriptedServer]:
    """A server that answers by a script."""
    server, ready = ScriptedServer(), threading.Event()
    ending: list[Callable[[], object]] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.num_connections += 1
        try:
            while await answer(server, script, reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        server.port = listening.sockets[0].getsockname()[1]
        ending.append(lambda: loop.call_soon_threadsafe(over.set))
        ready.set()
        await over.wait()
        listening.close()
        mine = asyncio.current_task()
        for task in asyncio.all_tasks() - {mine}:
            task.cancel()
        await asyncio.gather(*(asyncio.all_tasks() - {mine}), return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="scripted server")
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        ending[0]()
        thread.join(60)
        assert not thread.is_alive()


async def answer(
    server: ScriptedServer, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """One answer; False when the connection is closed."""
    start = await reader.readexactly(1)
    if not start.isalpha():  # a client that speaks TLS
        writer.write(b"HTTP/1.1 400 X\r\n\r\n")
        return False
    head = (start + await reader.readuntil(b"\r\n\r\n")).decode()
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    asked = RecordedRequest(line, headers, json.loads(body) if body else None)
    server.requests.append(asked)
    server.running += 1
    server.max_running = max(server.max_running, server.running)
    try:
        for part in script(asked):
            if isinstance(part, float):
                await asyncio.sleep(part)
            elif isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            elif part == ABORT:
                writer.transport.abort()
                return False
            else:
                return False
        return True
    finally:
        server.running -= 1
