"""Sessions that are dropped while something else has them leave nothing behind."""

import asyncio
from typing import Any

import pytest

from sporelm.serve.failures import Refusal
from sporelm.serve.keys import ApiKey
from sporelm.serve.sessions import Session, SessionName, Sessions

KEY = ApiKey("anna", b"", "")


class Talk:
    """As much of a conversation as sessions use."""

    def __init__(self) -> None:
        self.closed = 0
        self.twin: Talk | None = None

    def fork(self) -> "Talk":
        self.twin = Talk()
        return self.twin

    def close(self) -> None:
        self.closed += 1


class Model:
    """A model whose engine comes to the end of its steps when it is let."""

    name = "m"

    def __init__(self) -> None:
        self.llm = self
        self.free = asyncio.Event()

    async def between_steps(self, what: Any) -> Any:
        await self.free.wait()
        return what()


def made(sessions: Sessions, model: Any) -> tuple[Session, Talk]:
    talk = Talk()
    session = Session(SessionName("anna", "m", "one"), model, talk)  # type: ignore[arg-type]
    sessions.awake[session.name] = session
    return session, talk


def test_one_that_is_dropped_while_it_is_forked_is_closed() -> None:
    async def main() -> None:
        model, sessions = Model(), Sessions(4, None)
        _, talk = made(sessions, model)
        session = await sessions.take(KEY, model, "one", create=False)  # type: ignore[arg-type]
        forking = asyncio.ensure_future(sessions.fork(session, "two"))
        await asyncio.sleep(0)
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        model.free.set()
        await forking
        while not talk.closed:
            await asyncio.sleep(0)
        assert talk.twin is not None
        assert not talk.twin.closed
        assert [name.id for name in sessions.awake] == ["two"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_one_that_is_dropped_after_its_asker_left_is_closed() -> None:
    async def main() -> None:
        model, sessions = Model(), Sessions(4, None)
        session, talk = made(sessions, model)
        model.free.set()
        await sessions._limiting.acquire()  # whoever takes the session waits, and leaves
        taking = asyncio.ensure_future(sessions.take(KEY, model, "one", create=False))  # type: ignore[arg-type]
        while not session.taken:
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        sessions._limiting.release()
        while not talk.closed:
            await asyncio.sleep(0)
        with pytest.raises(Refusal, match="not found"):
            await sessions.take(KEY, model, "one", create=False)  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(main(), 60))
