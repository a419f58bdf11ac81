"""SessionPool that are dropped while something else has them leave nothing behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.sessions.session_pool import Session, SessionName, SessionPool

KEY = ApiKey("anna", b"", "")


class Talk:
    """As much of a conversation as sessions use."""

    def __init__(self) -> None:
        self.closed = 0
        self.child: Talk | None = None

    def fork(self) -> "Talk":
        self.child = Talk()
        return self.child

    def close(self) -> None:
        self.closed += 1


class Model:
    """A model whose engine comes to the end of its steps when it is let."""

    name = "m"

    def __init__(self) -> None:
        self.async_llm = self
        self.free = asyncio.Event()

    async def run_between_steps(self, what: Any) -> Any:
        await self.free.wait()
        return what()


def add_session(sessions: SessionPool, model: Any) -> tuple[Session, Talk]:
    talk = Talk()
    session = Session(SessionName("anna", "m", "one"), model, talk)  # type: ignore[arg-type]
    sessions.active[session.name] = session
    return session, talk


def test_one_that_is_dropped_while_it_is_forked_is_closed() -> None:
    async def main() -> None:
        model, sessions = Model(), SessionPool(4, None)
        _, talk = add_session(sessions, model)
        session = await sessions.acquire(KEY, model, "one", create=False)  # type: ignore[arg-type]
        forking = asyncio.ensure_future(sessions.fork(session, "two"))
        await asyncio.sleep(0)
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        model.free.set()
        await forking
        while not talk.closed:
            await asyncio.sleep(0)
        assert talk.child is not None
        assert not talk.child.closed
        assert [name.id for name in sessions.active] == ["two"]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_one_that_is_dropped_after_its_asker_left_is_closed() -> None:
    async def main() -> None:
        model, sessions = Model(), SessionPool(4, None)
        session, talk = add_session(sessions, model)
        model.free.set()
        await sessions._limiting.acquire()  # the request waits here, and is cancelled
        taking = asyncio.ensure_future(sessions.acquire(KEY, model, "one", create=False))  # type: ignore[arg-type]
        while not session.is_acquired:
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        sessions._limiting.release()
        while not talk.closed:
            await asyncio.sleep(0)
        with pytest.raises(ApiError, match="not found"):
            await sessions.acquire(KEY, model, "one", create=False)  # type: ignore[arg-type]

    asyncio.run(asyncio.wait_for(main(), 60))


class Saved(Talk):
    """A conversation that counts how often it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[dict[str, Any]] = []
        self.saves: list[int] = []

    def say(self, text: str) -> None:
        self.messages = [*self.messages, {"role": "user", "content": text}]

    def save(self, path: Path) -> int:
        path.write_text(str(len(self.messages)))
        self.saves.append(len(self.messages))
        return 1


def saved(sessions: SessionPool, model: Any) -> tuple[Session, Saved]:
    session, talk = add_session(sessions, model)
    session.conversation = talk = Saved()  # type: ignore[assignment]
    model.free.set()
    return session, talk


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def turn(sessions: SessionPool, model: Any, text: str) -> None:
    """Use a session as a request does."""
    session = await sessions.acquire(KEY, model, "one", create=False)
    session.conversation.say(text)  # type: ignore[attr-defined]
    sessions.release(session)


def test_a_session_is_written_once_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.session_pool.IDLE_SECONDS", 0.05)

    async def main() -> None:
        model, sessions = Model(), SessionPool(4, tmp_path)
        session, talk = saved(sessions, model)
        for text in ("a", "b", "c"):
            await turn(sessions, model, text)
        await until(lambda: talk.saves)
        assert talk.saves == [3], "once, when it was idle"
        assert (tmp_path / session.name.file).read_text() == "3"
        sessions.release(await sessions.acquire(KEY, model, "one", create=False))  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        assert talk.saves == [3], "nothing was said since"
        await turn(sessions, model, "d")
        await until(lambda: len(talk.saves) == 2)
        await sessions.suspend_model(model)  # type: ignore[arg-type]
        assert talk.saves == [3, 4], "the file holds all, so it is not written again"
        assert talk.closed == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_in_use_all_the_time_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.session_pool.IDLE_SECONDS", 1000.0)
    monkeypatch.setattr("sporelm.serve.sessions.session_pool.MAX_UNSAVED_SECONDS", 0.1)

    async def main() -> None:
        model, sessions = Model(), SessionPool(4, tmp_path)
        _, talk = saved(sessions, model)
        while not talk.saves:
            await turn(sessions, model, "again")
            await asyncio.sleep(0.002)
        assert len(talk.messages) > 2

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_that_is_taken_or_dropped_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.session_pool.IDLE_SECONDS", 0.02)

    async def main() -> None:
        model, sessions = Model(), SessionPool(4, tmp_path)
        _, talk = saved(sessions, model)
        await turn(sessions, model, "a")
        session = await sessions.acquire(KEY, model, "one", create=False)  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not talk.saves
        sessions.release(session)
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not talk.saves
        assert not list(tmp_path.iterdir())

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_that_cannot_be_written_stays_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.session_pool.IDLE_SECONDS", 0.02)

    async def main() -> None:
        model, sessions = Model(), SessionPool(4, tmp_path)
        session, talk = saved(sessions, model)

        def fail(path: Path) -> int:
            raise RequestError("the disk is full")

        monkeypatch.setattr(talk, "save", fail)
        await turn(sessions, model, "a")
        await until(lambda: caplog.records)
        assert "the disk is full" in caplog.text
        assert sessions.contains(session)
        assert not talk.closed

    asyncio.run(asyncio.wait_for(main(), 60))
