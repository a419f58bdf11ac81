"""Answers of the web chat as jobs: begun once, followed, stopped, stored however they end."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from sporelm.serve.conversations import answer_jobs
from sporelm.serve.conversations.answer_job import DEFAULT_MORE_TOKENS, AnswerFailed, AnswerRefused, AnswerRequest
from sporelm.serve.conversations.answer_jobs import AnswerJobs
from sporelm.serve.conversations.answer_stats import Progress
from sporelm.serve.conversations.conversation_schema import ConversationLimits, InvalidConversation
from sporelm.serve.conversations.conversation_store import ConversationNotFound, ConversationStore
from sporelm.serve.conversations.message_branches import prompt_messages

A, B, C, D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
QUESTION = {"id": A, "parent": None, "role": "user", "content": "Hello"}
ASK = {"id": B, "parent": A, "model": "m"}


class Source:
    """Writes "one two three", a word whenever it is told to go on."""

    def __init__(self, *, pieces: int = 3, error: Exception | None = None, held: bool = False) -> None:
        self.requests: list[AnswerRequest] = []
        self.go = asyncio.Semaphore(0 if held else 1000)
        self.pieces, self.error = pieces, error
        self.was_cut = False

    async def __call__(self, asked: AnswerRequest) -> AsyncGenerator[Progress, None]:
        self.requests.append(asked)
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


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario()

    asyncio.run(limited())


def stored(jobs: AnswerJobs, at: int = -1) -> dict[str, Any]:
    found: dict[str, Any] = jobs.store.get("me", C)["messages"][at]
    return found


def parse_event(event: bytes) -> tuple[str, dict[str, Any], str]:
    """An event's name, data and id."""
    lines = dict(line.split(": ", 1) for line in event.decode().strip().split("\n"))
    return lines["event"], json.loads(lines["data"]), lines.get("id", "")


async def next_event(events: AsyncGenerator[bytes, None], name: str) -> tuple[dict[str, Any], str, str]:
    """The next event of a name: its data and id, and the content of all deltas before it."""
    content = ""
    async for event in events:
        kind, data, place = parse_event(event)
        if kind == "delta":
            content += data.get("content", "")
        if kind == name:
            return data, place, content
    raise AssertionError(f"the events ended without {name}")


def test_an_answer_is_generated_and_stored(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        source = Source()
        job = await jobs.start("me", C, ASK, source)
        assert (stored(jobs)["finish"], job.version) == ("interrupted", 2), "should the server be killed now"
        await job.ended.wait()
        assert jobs.running_job("me", C) is None
        answer = stored(jobs)
        assert (answer["content"], answer["finish"], answer["model"]) == ("one two three ", "stop", "m")
        stats = {"completion_tokens": 3, "prompt_tokens": 10, "cached_tokens": 4, "tokens_per_s": 50.0}
        assert {name: value for name, value in answer["stats"].items() if name != "first_token_s"} == stats
        conversation = jobs.store.get("me", C)
        assert (conversation["current"], conversation["version"]) == (B, 3)
        asked = source.requests[0]
        assert asked.settings == {"seed": 1, "stop": ["END"]}
        assert asked.messages == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
        with pytest.raises(AnswerRefused) as refused:
            await jobs.start("me", C, ASK, source)
        assert refused.value.code == "answer_exists"

    run(scenario)


def test_an_answer_that_ends_while_its_conversation_is_read_is_not_shown_as_interrupted(
    jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        loop, read = asyncio.get_running_loop(), jobs.store.get
        reads = []

        def slow_read(owner: str, conversation_id: str) -> dict[str, Any]:
            conversation = read(owner, conversation_id)
            reads.append(conversation["messages"][-1]["finish"])
            if len(reads) == 1:  # the file has been read, and only then the answer ends
                for _ in range(10):
                    loop.call_soon_threadsafe(source.go.release)
                asyncio.run_coroutine_threadsafe(job.ended.wait(), loop).result(20)
            return conversation

        monkeypatch.setattr(jobs.store, "get", slow_read)
        conversation, running = await jobs.conversation("me", C)
        assert (reads[0], reads[-1]) == ("interrupted", "stop"), "between them the end is stored, which reads too"
        assert running is None
        assert conversation["messages"][-1]["content"] == "one two three "

    run(scenario)


def test_a_conversation_has_one_answer_at_a_time_and_requests_are_idempotent(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
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
        assert len(source.requests) == 1

    run(scenario)


def test_a_stopped_answer_keeps_its_text_and_can_be_continued(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
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
        asked = source.requests[0]
        assert asked.continue_last
        assert asked.messages[-1] == {"role": "assistant", "content": "one two "}
        assert asked.settings["max_tokens"] == DEFAULT_MORE_TOKENS
        for wish in ({"id": B, "continue": True}, {"id": A, "continue": True}, {"id": D, "continue": True}):
            with pytest.raises(AnswerRefused, match="continue"):
                await jobs.start("me", C, wish | {"model": "m"}, source)

    run(scenario)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AnswerFailed({"code": "request_timeout", "seconds": 5}), {"code": "request_timeout", "seconds": 5}),
        (ValueError("a secret"), {"code": "internal_error"}),
    ],
)
def test_a_failed_answer_stores_a_code(jobs: AnswerJobs, error: Exception, expected: dict[str, Any]) -> None:
    async def scenario() -> None:
        job = await jobs.start("me", C, ASK, Source(pieces=1, error=error))
        await job.ended.wait()
        answer = stored(jobs)
        assert (answer["content"], answer["finish"], answer["error"]) == ("one ", "error", expected)
        before = stored(jobs)
        job = await jobs.start("me", C, {"id": B, "model": "m", "continue": True}, Source(pieces=0, error=error))
        await job.ended.wait()
        assert stored(jobs) == before, "it is no worse for having been asked to go on"
        assert job.error == expected

    run(scenario)


def test_followers_get_all_events_and_can_reconnect(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        source = Source(held=True, pieces=6)
        async with aclosing(jobs.follow("me", C)) as events:
            first, _, _ = await next_event(events, "state")
            assert first == {"version": 1, "answer": None}
            job = await jobs.start("me", C, ASK, source)
            begun, place, _ = await next_event(events, "answer")
            assert (begun["answer"]["id"], begun["version"], place) == (B, 2, f"{B}.0.0")
            for _ in range(3):
                source.go.release()
            content = ""
            while content != "one two three ":
                delta, place, _ = await next_event(events, "delta")
                content += delta.get("content", "")
            assert place == f"{B}.14.0"
            assert delta["stats"]["prompt_tokens"] == 10
        async with aclosing(jobs.follow("me", C)) as events:
            whole, _, _ = await next_event(events, "state")
            assert whole["answer"]["content"] == "one two three "
        async with aclosing(jobs.follow("me", C, f"{B}.4.0")) as events:
            rest, _, _ = await next_event(events, "state")
            assert rest["answer"] == {"id": B}
            for _ in range(3):
                source.go.release()
            ended, _, content = await next_event(events, "end")
            assert ("one " + content).startswith("one two three ")
            assert (ended["answer"]["content"], ended["version"]) == ("one two three " * 2, 3)
            after = jobs.store.change("me", C, {"version": 3, "title": "Other"})
            jobs.conversation_changed("me", C, after)
            assert (await next_event(events, "changed"))[0] == {"version": 4}
            jobs.store.delete("me", C)
            jobs.conversation_deleted("me", C)
            assert (await next_event(events, "deleted"))[0] == {}
        assert job.ended.is_set()
        assert jobs.num_followers == 0
        assert not jobs._channels, "conversations without followers are forgotten"

    run(scenario)


@pytest.mark.parametrize("place", ["", "x", f"{D}.0.0", f"{B}.99.0", f"{B}.-1.0", f"{B}.1.0.0", "é" * 500])
def test_an_unknown_event_id_gets_the_whole_answer(jobs: AnswerJobs, place: str) -> None:
    async def scenario() -> None:
        job = await jobs.start("me", C, ASK, Source(held=True))
        async with aclosing(jobs.follow("me", C, place)) as events:
            assert (await next_event(events, "state"))[0]["answer"]["role"] == "assistant"
        job.cancel()
        await jobs.wait_until_finished()

    run(scenario)


def test_other_keys_have_other_conversations(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        with pytest.raises(ConversationNotFound):
            await jobs.start("you", C, ASK, Source())
        with pytest.raises(ConversationNotFound):
            await anext(jobs.follow("you", C))
        assert not jobs._channels

    run(scenario)


def test_changes_by_pages_do_not_affect_the_answer(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        forged = QUESTION | {"id": B, "parent": A, "role": "assistant", "content": "forged"}
        after = jobs.store.change("me", C, {"version": 2, "title": "Other", "messages": [forged]}, protected_id=B)
        jobs.conversation_changed("me", C, after)
        for _ in range(3):
            source.go.release()
        await job.ended.wait()
        found = jobs.store.get("me", C)
        assert (found["title"], found["messages"][1]["content"], found["version"]) == ("Other", "one two three ", 4)

    run(scenario)


@pytest.mark.parametrize("whole", [True, False])
def test_a_deleted_message_or_conversation_is_not_written_again(jobs: AnswerJobs, whole: bool) -> None:
    async def scenario() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        await asyncio.sleep(0)
        if whole:
            jobs.store.delete("me", C)
            jobs.conversation_deleted("me", C)
        else:
            jobs.conversation_changed("me", C, jobs.store.change("me", C, {"version": 2, "remove": [A]}))
        await job.ended.wait()
        if not whole:
            assert jobs.store.get("me", C)["messages"] == []

    run(scenario)


def test_partial_answers_are_stored_without_a_new_version(jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_jobs, "STORE_SECONDS", 0.01)

    async def scenario() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)
        source.go.release()
        while stored(jobs)["content"] != "one ":
            await asyncio.sleep(0.005)
        assert stored(jobs)["finish"] == "interrupted"
        assert jobs.store.get("me", C)["version"] == 2, "a page's change from version 2 is still taken"
        jobs.interrupt()
        await jobs.wait_until_finished()
        assert job.message["finish"] == stored(jobs)["finish"] == "interrupted"

    run(scenario)


def test_draining_finishes_answers_and_ends_idle_streams(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        source = Source(held=True)
        jobs.store.create("me", {"id": D})
        idle = asyncio.ensure_future(_all(jobs.follow("me", D)))
        busy = asyncio.ensure_future(_all(jobs.follow("me", C)))
        job = await jobs.start("me", C, ASK, source)
        await asyncio.sleep(0.05)
        jobs.drain()
        assert [parse_event(event)[0] for event in await idle] == ["state"]
        with pytest.raises(AnswerRefused, match="shutting down"):
            await jobs.start("me", D, ASK, source)
        assert not busy.done()
        for _ in range(3):
            source.go.release()
        await jobs.wait_until_finished()
        assert parse_event((await busy)[-1])[0] == "end"
        assert job.message["finish"] == "stop"

    run(scenario)


async def _all(events: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [event async for event in events]


def test_answers_and_followers_of_a_key_are_limited(jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_jobs, "MAX_RUNNING_PER_KEY", 1)
    monkeypatch.setattr(answer_jobs, "MAX_FOLLOWERS_PER_KEY", 1)

    async def scenario() -> None:
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
        jobs.interrupt()
        await jobs.wait_until_finished()

    run(scenario)


def test_an_answer_that_exceeds_the_store_limits_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_jobs, "STORE_SECONDS", 0.01)
    jobs = AnswerJobs(ConversationStore(tmp_path, ConversationLimits(conversation_bytes=1_500)))
    jobs.store.create("me", {"id": C, "messages": [QUESTION]})

    async def scenario() -> None:
        source = Source(pieces=10_000, held=True)
        job = await jobs.start("me", C, ASK, source)
        for _ in range(400):
            source.go.release()
        await job.ended.wait()
        assert source.was_cut
        assert job.message["error"]["code"] == "too_large"
        assert len(stored(jobs)["content"]) < 1_500

    run(scenario)


def test_an_unexpected_error_of_the_store_ends_the_answer(
    jobs: AnswerJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(answer_jobs, "STORE_SECONDS", 0.01)

    async def scenario() -> None:
        source = Source(held=True)
        job = await jobs.start("me", C, ASK, source)

        def fail(*words: object, **more: object) -> None:
            raise ArithmeticError("unexpected")

        with monkeypatch.context() as broken:
            broken.setattr(jobs.store, "update", fail)
            source.go.release()
            await job.ended.wait()
        assert job.message["error"] == {"code": "internal_error"}
        await jobs.wait_until_finished()
        assert source.was_cut
        assert "unexpected ArithmeticError" in caplog.text
        following = await jobs.start("me", C, ASK | {"id": D}, Source())
        await following.ended.wait()
        assert stored(jobs)["finish"] == "stop"

    run(scenario)


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
def test_invalid_answer_requests_are_refused(jobs: AnswerJobs, wish: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidConversation):
            await jobs.start("me", C, wish, Source())
        assert not jobs._channels

    run(scenario)


def test_only_a_stored_question_is_answered(jobs: AnswerJobs) -> None:
    async def scenario() -> None:
        jobs.store.create("me", {"id": D, "kind": "completion", "messages": [QUESTION]})
        with pytest.raises(InvalidConversation, match="kind completion"):
            await jobs.start("me", D, ASK, Source())
        with pytest.raises(AnswerRefused) as refused:
            await jobs.start("me", C, ASK | {"parent": D}, Source())
        assert refused.value.code == "no_question"

    run(scenario)


def message(name: str, parent: str | None, role: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "parent": parent, "role": role, "content": content, **fields}


def test_a_prompt_contains_one_branch() -> None:
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
    assert prompt_messages(conversation, "7") == shown
    messages[-1]["context_start"] = "6"
    assert prompt_messages(conversation, "7") == [shown[0], shown[-1]]
    messages[-1]["context_start"] = "3"
    assert prompt_messages(conversation, "7") == shown, "a start on another branch says nothing"
    assert prompt_messages(conversation, "8") == shown[:1]
