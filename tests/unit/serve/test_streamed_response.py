"""Responses in pieces: how they end."""

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from sporelm.errors import BackendError
from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.sse import openai_error_event
from sporelm.serve.http.streamed_response import StreamedResponse


def call_of(seconds: float = 10) -> ApiCall:
    """As much of a call as a stream asks for. To be made in a loop."""
    call = ApiCall.__new__(ApiCall)
    call.path_names = {}
    call.parameters = ()
    call.server = SimpleNamespace(config=SimpleNamespace(request_seconds=seconds))  # type: ignore[assignment]
    call.deadline = asyncio.get_running_loop().time() + seconds
    return call


async def sent(pieces: AsyncGenerator[bytes, None], seconds: float = 10) -> list[bytes]:
    found: list[bytes] = []

    async def send(message: Any) -> None:
        found.append(message.get("body", b""))

    await StreamedResponse(pieces, "text/event-stream", openai_error_event, call_of(seconds))({}, None, send)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (BackendError("the engine failed"), b"the engine failed"),
        (ValueError("a secret detail"), b"internal error"),
    ],
)
def test_an_error_on_the_way_is_the_last_piece(error: Exception, told: bytes) -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise error

    head, one, last, end = asyncio.run(sent(pieces()))
    assert (head, one, end) == (b"", b"one", b"")
    assert told in last
    assert b"secret detail" not in last


def test_what_is_late_says_so_and_is_made_no_further() -> None:
    ended = []

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    found = asyncio.run(sent(pieces(), 0.01))
    assert b"request_seconds" in found[-2]
    assert ended


def test_who_leaves_while_a_piece_is_on_its_way_ends_the_making_of_pieces() -> None:
    ended = []

    async def pieces() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"more"
        finally:
            await asyncio.sleep(0)  # what takes a while to end is waited for
            ended.append(True)

    async def main() -> None:
        full = asyncio.Event()

        async def send(message: Any) -> None:
            if message.get("body"):
                full.set()
                await asyncio.Event().wait()

        made = pieces()
        stream = StreamedResponse(made, "text/plain", openai_error_event, call_of())
        task = asyncio.ensure_future(stream({}, None, send))  # type: ignore[arg-type]
        await full.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    asyncio.run(main())
