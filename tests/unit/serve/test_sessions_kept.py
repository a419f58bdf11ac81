"""Sessions that are dropped while something else has them leave nothing behind."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
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


def saved(sessions: Sessions, model: Any) -> tuple[Session, Saved]:
    session, talk = made(sessions, model)
    session.conversation = talk = Saved()  # type: ignore[assignment]
    model.free.set()
    return session, talk


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def turn(sessions: Sessions, model: Any, text: str) -> None:
    """What a request does."""
    session = await sessions.take(KEY, model, "one", create=False)
    session.conversation.say(text)  # type: ignore[attr-defined]
    sessions.give_back(session)


def test_a_session_is_written_once_when_it_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.IDLE_SECONDS", 0.05)

    async def main() -> None:
        model, sessions = Model(), Sessions(4, tmp_path)
        session, talk = saved(sessions, model)
        for text in ("a", "b", "c"):
            await turn(sessions, model, text)
        await until(lambda: talk.saves)
        assert talk.saves == [3], "once, when it was idle"
        assert (tmp_path / session.name.file).read_text() == "3"
        sessions.give_back(await sessions.take(KEY, model, "one", create=False))  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        assert talk.saves == [3], "nothing was said since"
        await turn(sessions, model, "d")
        await until(lambda: len(talk.saves) == 2)
        await sessions.farewell(model)  # type: ignore[arg-type]
        assert talk.saves == [3, 4], "the file holds all, so it is not written again"
        assert talk.closed == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_in_use_all_the_time_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.IDLE_SECONDS", 1000.0)
    monkeypatch.setattr("sporelm.serve.sessions.MAX_UNSAVED_SECONDS", 0.1)

    async def main() -> None:
        model, sessions = Model(), Sessions(4, tmp_path)
        _, talk = saved(sessions, model)
        while not talk.saves:
            await turn(sessions, model, "again")
            await asyncio.sleep(0.002)
        assert len(talk.messages) > 2

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_that_is_taken_or_dropped_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.IDLE_SECONDS", 0.02)

    async def main() -> None:
        model, sessions = Model(), Sessions(4, tmp_path)
        _, talk = saved(sessions, model)
        await turn(sessions, model, "a")
        session = await sessions.take(KEY, model, "one", create=False)  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not talk.saves
        sessions.give_back(session)
        assert await sessions.drop(KEY, model, "one")  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert not talk.saves
        assert not list(tmp_path.iterdir())

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_session_that_cannot_be_written_stays_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sporelm.serve.sessions.IDLE_SECONDS", 0.02)

    async def main() -> None:
        model, sessions = Model(), Sessions(4, tmp_path)
        session, talk = saved(sessions, model)

        def fail(path: Path) -> int:
            raise RequestError("the disk is full")

        monkeypatch.setattr(talk, "save", fail)
        await turn(sessions, model, "a")
        await until(lambda: caplog.records)
        assert "the disk is full" in caplog.text
        assert sessions.is_kept(session)
        assert not talk.closed

    asyncio.run(asyncio.wait_for(main(), 60))
