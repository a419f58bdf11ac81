"""Answers of the web chat as jobs: begun once, followed, stopped, stored however they end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sporelm.serve import conversation_jobs
from sporelm.serve.conversation_form import BadConversation, Limits
from sporelm.serve.conversation_jobs import AnswerFailed, AnswerJobs, AnswerRefused, AnswerRequest, Progress
from sporelm.serve.conversation_turns import turns
from sporelm.serve.conversations import ConversationNotFound, ConversationStore

A, B, C, D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
QUESTION = {"id": A, "parent": None, "role": "user", "content": "Hello"}
ASK = {"id": B, "parent": A, "model": "m"}


class Source:
    """Writes "one two three", a word whenever it is told to go on."""

    def __init__(self, *, pieces: int = 3, error: Exception | None = None, held: bool = False) -> None:
        self.asked: list[AnswerRequest] = []
        self.go = asyncio.Semaphore(0 if held else 1000)
        self.pieces, self.error = pieces, error
        self.was_cut = False

    async def __call__(self, asked: AnswerRequest) -> AsyncGenerator[Progress, None]:
        self.asked.append(asked)
        try:
            for index in range(self.pieces):
                await self.go.acquire()
                yield Progress(("one ", "two ", "three ")[index % 3], "", 10, index + 1, 4)
            if self.error is not None:
                raise self.error
            yield Progress("", "", 10, self.pieces, 4, 50.0, finish="stop")
        except asyncio.CancelledError:
            self.was_cut = True
            raise


@pytest.fixture
def jobs(tmp_path: Path) -> AnswerJobs:
    """With one conversation, `C`, of the key "me": a question."""
    store = ConversationStore(tmp_path / "kept")
    store.create("me", {"id": C, "messages": [QUESTION], "settings": {"seed": 1, "stop": "END"}, "system": "Be kind."})
    return AnswerJobs(store)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(limited())


def stored(jobs: AnswerJobs, at: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = jobs.store.get("me", C)["messages"][at]
    return found


def told(event: bytes) -> tuple[str, dict[str, Any], str]:
    """An event's name, data and id."""
    lines = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    return lines["event"], json.loads(lines["data"]), lines.get("id", "")


async def heard(events: AsyncGenerator[bytes, None], name: str) -> tuple[dict[str, Any], str, str]:
    """The next event of a name: its data and id, and the content of all deltas before it."""
    content = ""
    async for event in events:
        kind, data, place = told(event)
        if kind == "delta":
            content += data.get("content", "")
        if kind == name:
            return data, place, content
    raise AssertionError(f"the events ended without {name}")


def test_an_answer_is_written_and_stored(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source()
        job = await jobs.start("me", C, ASK, source)
        assert (stored(jobs)["finish"], job.version) == ("interrupted", 2), "should the server be killed now"
        await job.ended.wait()
        assert jobs.running("me", C) is None
        answer = stored(jobs)
        assert (answer["content"], answer["finish"], answer["model"]) == ("one two three ", "stop", "m")
        stats = {"completion_tokens": 3, "prompt_tokens": 10, "cached_tokens": 4, "tokens_per_s": 50.0}
        assert {name: value for name, value in answer["stats"].items() if name != "first_token_s"} == stats
        conversation = jobs.store.get("me", C)
        assert (conversation["current"], conversation["version"]) == (B, 3)
        asked = source.asked[0]
        assert asked.settings == {"seed": 1, "stop": ["END"]}
        assert asked.messages == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        with pytest.raises(AnswerRefused) as refused:
            await jobs.start("me", C, ASK, source)
        assert refused.value.code == "answer_exists"

    run(work)


def test_one_answer_at_a_time_and_none_twice(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source(held=True)
        first, second = await asyncio.gather(
            jobs.start("me", C, ASK, source), jobs.start("me", C, ASK | {"id": D}, source), return_exceptions=True
        )
        assert isinstance(second, AnswerRefused)
        assert (second.status, second.code) == (409, "answer_running")
        assert await jobs.start("me", C, ASK, source) is first, "a request whose reply was lost"
        assert await jobs.stop("me", C, D) is False
        assert await jobs.stop("you", C, B) is False
        assert await jobs.stop("me", C, B) is True
        assert len(source.asked) == 1

    run(work)


def test_a_stopped_answer_keeps_what_came_and_goes_on(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        source.go.release()
        source.go.release()
        while job.message["content"] != "one two ":
            await asyncio.sleep(0.001)
        assert await jobs.stop("me", C, B)
        assert source.was_cut
        answer = stored(jobs)
        assert (answer["content"], answer["finish"]) == ("one two ", "cancelled")
        assert (answer["stats"]["prompt_tokens"], answer["stats"]["completion_tokens"]) == (10, 2)
        job = await jobs.start("me", C, {"id": B, "model": "m", "continue": True}, source := Source(pieces=1))
        await job.ended.wait()
        answer = stored(jobs)
        assert (answer["content"], answer["finish"]) == ("one two one ", "stop")
        assert (answer["stats"]["prompt_tokens"], answer["stats"]["completion_tokens"]) == (8, 3), "of both parts"
        asked = source.asked[0]
        assert asked.continues
        assert asked.messages[-1] == {"role": "assistant", "content": "one two "}
        assert asked.settings["max_tokens"] == conversation_jobs.MORE_TOKENS
        for wish in ({"id": B, "continue": True}, {"id": A, "continue": True}, {"id": D, "continue": True}):
            with pytest.raises(AnswerRefused, match="continue"):
                await jobs.start("me", C, wish | {"model": "m"}, source)

    run(work)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AnswerFailed({"code": "request_timeout", "seconds": 5}), {"code": "request_timeout", "seconds": 5}),
        (ValueError("a secret"), {"code": "internal_error"}),
    ],
)
def test_a_failed_answer_stores_a_code(jobs: AnswerJobs, error: Exception, expected: dict[str, Any]) -> None:
    async def work() -> None:
        job = await jobs.start("me", C, ASK, Source(pieces=1, error=error))
        await job.ended.wait()
        answer = stored(jobs)
        assert (answer["content"], answer["finish"], answer["error"]) == ("one ", "error", expected)
        before = stored(jobs)
        job = await jobs.start("me", C, {"id": B, "model": "m", "continue": True}, Source(pieces=0, error=error))
        await job.ended.wait()
        assert stored(jobs) == before, "it is no worse for having been asked to go on"
        assert job.error == expected

    run(work)


def test_followers_hear_of_everything_and_come_back(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source(held=True, pieces=6)
        async with aclosing(jobs.follow("me", C)) as events:
            first, _, _ = await heard(events, "state")
            assert first == {"version": 1, "answer": None}
            job = await jobs.start("me", C, ASK, source)
            begun, place, _ = await heard(events, "answer")
            assert (begun["answer"]["id"], begun["version"], place) == (B, 2, f"{B}.0.0")
            for _ in range(3):
                source.go.release()
            content = ""
            while content != "one two three ":
                delta, place, _ = await heard(events, "delta")
                content += delta.get("content", "")
            assert place == f"{B}.14.0"
            assert delta["stats"]["prompt_tokens"] == 10
        async with aclosing(jobs.follow("me", C)) as events:
            whole, _, _ = await heard(events, "state")
            assert whole["answer"]["content"] == "one two three "
        async with aclosing(jobs.follow("me", C, f"{B}.4.0")) as events:
            rest, _, _ = await heard(events, "state")
            assert rest["answer"] == {"id": B}
            for _ in range(3):
                source.go.release()
            ended, _, content = await heard(events, "end")
            assert ("one " + content).startswith("one two three ")
            assert (ended["answer"]["content"], ended["version"]) == ("one two three " * 2, 3)
            after = jobs.store.change("me", C, {"version": 3, "title": "Other"})
            jobs.changed("me", C, after)
            assert (await heard(events, "changed"))[0] == {"version": 4}
            jobs.store.delete("me", C)
            jobs.deleted("me", C)
            assert (await heard(events, "deleted"))[0] == {}
        assert job.ended.is_set()
        assert jobs.num_followers == 0
        assert not jobs._channels, "nothing is remembered of what nobody follows"

    run(work)


@pytest.mark.parametrize("place", ["", "x", f"{D}.0.0", f"{B}.99.0", f"{B}.-1.0", f"{B}.1.0.0", "é" * 500])
def test_an_unknown_place_is_sent_everything(jobs: AnswerJobs, place: str) -> None:
    async def work() -> None:
        job = await jobs.start("me", C, ASK, Source(held=True))
        async with aclosing(jobs.follow("me", C, place)) as events:
            assert (await heard(events, "state"))[0]["answer"]["role"] == "assistant"
        job.cancel()
        await jobs.finished()

    run(work)


def test_other_keys_have_other_conversations(jobs: AnswerJobs) -> None:
    async def work() -> None:
        with pytest.raises(ConversationNotFound):
            await jobs.start("you", C, ASK, Source())
        with pytest.raises(ConversationNotFound):
            await anext(jobs.follow("you", C))
        assert not jobs._channels

    run(work)


def test_changes_of_pages_leave_the_answer_alone(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        forged = QUESTION | {"id": B, "parent": A, "role": "assistant", "content": "forged"}
        after = jobs.store.change("me", C, {"version": 2, "title": "Other", "messages": [forged]}, protected=B)
        jobs.changed("me", C, after)
        for _ in range(3):
            source.go.release()
        await job.ended.wait()
        found = jobs.store.get("me", C)
        assert (found["title"], found["messages"][1]["content"], found["version"]) == ("Other", "one two three ", 4)

    run(work)


@pytest.mark.parametrize("whole", [True, False])
def test_what_is_deleted_is_written_no_more(jobs: AnswerJobs, whole: bool) -> None:
    async def work() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        await asyncio.sleep(0)
        if whole:
            jobs.store.delete("me", C)
            jobs.deleted("me", C)
        else:
            jobs.changed("me", C, jobs.store.change("me", C, {"version": 2, "remove": [A]}))
        await job.ended.wait()
        if not whole:
            assert jobs.store.get("me", C)["messages"] == []

    run(work)


def test_what_comes_is_stored_now_and_then_without_a_new_version(
    jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_jobs, "STORE_SECONDS", 0.01)

    async def work() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        source.go.release()
        while stored(jobs)["content"] != "one ":
            await asyncio.sleep(0.005)
        assert stored(jobs)["finish"] == "interrupted"
        assert jobs.store.get("me", C)["version"] == 2, "a page's change from version 2 is still taken"
        jobs.break_off()
        await jobs.finished()
        assert job.message["finish"] == stored(jobs)["finish"] == "interrupted"

    run(work)


def test_an_ending_server_finishes_answers_and_lets_idle_followers_go(jobs: AnswerJobs) -> None:
    async def work() -> None:
        source = Source(held=True)
        jobs.store.create("me", {"id": D})
        idle = asyncio.ensure_future(_all(jobs.follow("me", D)))
        busy = asyncio.ensure_future(_all(jobs.follow("me", C)))
        job = await jobs.start("me", C, ASK, source)
        await asyncio.sleep(0.05)
        jobs.drain()
        assert [told(event)[0] for event in await idle] == ["state"]
        with pytest.raises(AnswerRefused, match="ending"):
            await jobs.start("me", D, ASK, source)
        assert not busy.done()
        for _ in range(3):
            source.go.release()
        await jobs.finished()
        assert told((await busy)[-1])[0] == "end"
        assert job.message["finish"] == "stop"

    run(work)


async def _all(events: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [event async for event in events]


def test_a_key_has_few_at_a_time(jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_jobs, "MAX_RUNNING_PER_KEY", 1)
    monkeypatch.setattr(conversation_jobs, "MAX_FOLLOWERS_PER_KEY", 1)

    async def work() -> None:
        for owner in ("me", "you"):
            jobs.store.create(owner, {"id": D, "messages": [QUESTION]})
        await jobs.start("me", C, ASK, Source(held=True))
        with pytest.raises(AnswerRefused) as refused:
            await jobs.start("me", D, ASK, Source())
        assert (refused.value.status, refused.value.code) == (429, "too_many_answers")
        await jobs.start("you", D, ASK, Source(held=True))
        async with aclosing(jobs.follow("me", C)) as events:
            await anext(events)
            with pytest.raises(AnswerRefused, match="streams of events"):
                await anext(jobs.follow("me", D))
        jobs.break_off()
        await jobs.finished()

    run(work)


def test_an_answer_that_outgrows_the_store_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_jobs, "STORE_SECONDS", 0.01)
    jobs = AnswerJobs(ConversationStore(tmp_path, Limits(conversation_bytes=1_500)))
    jobs.store.create("me", {"id": C, "messages": [QUESTION]})

    async def work() -> None:
        source = Source(pieces=10_000, held=True)
        job = await jobs.start("me", C, ASK, source)
        for _ in range(400):
            source.go.release()
        await job.ended.wait()
        assert source.was_cut
        assert job.message["error"]["code"] == "too_large"
        assert len(stored(jobs)["content"]) < 1_500

    run(work)


def test_an_unexpected_error_of_the_store_ends_the_answer(
    jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(conversation_jobs, "STORE_SECONDS", 0.01)

    async def work() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)

        def fail(*words: object, **more: object) -> None:
            raise ArithmeticError("of nobody's making")

        with monkeypatch.context() as broken:
            broken.setattr(jobs.store, "revise", fail)
            source.go.release()
            await job.ended.wait()
        assert job.message["error"] == {"code": "internal_error"}
        await jobs.finished()
        assert source.was_cut
        assert "unexpected ArithmeticError" in caplog.text
        following = await jobs.start("me", C, ASK | {"id": D}, Source())
        await following.ended.wait()
        assert stored(jobs)["finish"] == "stop"

    run(work)


@pytest.mark.parametrize(
    "wish",
    [
        [],
        {},
        ASK | {"id": "../" * 10 + "aa"},
        ASK | {"parent": None},
        ASK | {"parent": D, "id": 7},
        ASK | {"model": ""},
        ASK | {"model": "x" * 501},
        ASK | {"model": None},
        ASK | {"continue": 1},
        ASK | {"messages": []},
    ],
    ids=str,
)
def test_wrong_wishes_are_refused(jobs: AnswerJobs, wish: Any) -> None:
    async def work() -> None:
        with pytest.raises(BadConversation):
            await jobs.start("me", C, wish, Source())
        assert not jobs._channels

    run(work)


def test_only_a_stored_question_is_answered(jobs: AnswerJobs) -> None:
    async def work() -> None:
        jobs.store.create("me", {"id": D, "kind": "completion", "messages": [QUESTION]})
        with pytest.raises(BadConversation, match="kind completion"):
            await jobs.start("me", D, ASK, Source())
        with pytest.raises(AnswerRefused) as refused:
            await jobs.start("me", C, ASK | {"parent": D}, Source())
        assert refused.value.code == "no_question"

    run(work)


def message(name: str, parent: str | None, role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "parent": parent, "role": role, "content": content, **fields}


def test_the_model_is_shown_one_branch() -> None:
    messages = [
        message("1", None, "user", "one"),
        message("2", "1", "assistant", "first"),
        message("3", "1", "assistant", "other"),
        message("4", "2", "user", "failed"),
        message("5", "4", "assistant", "", error={"code": "x"}),
        message("6", "5", "user", "two"),
        message("7", "6", "user", "three"),
    ]
    conversation = {"messages": messages, "system": "Be kind."}
    shown = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two\n\nthree"},
    ]
    assert turns(conversation, "7") == shown
    messages[-1]["context_start"] = "6"
    assert turns(conversation, "7") == [shown[0], shown[-1]]
    messages[-1]["context_start"] = "3"
    assert turns(conversation, "7") == shown, "a start on another branch says nothing"
    assert turns(conversation, "8") == shown[:1]
