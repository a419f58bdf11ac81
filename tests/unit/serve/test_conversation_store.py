"""The store of the web chat's conversations, and its routes."""

import asyncio
import json
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.serve.conversations.conversation_schema import ConversationLimits, InvalidConversation, TooLarge
from sporelm.serve.conversations.conversation_store import (
    ConversationNotFound,
    ConversationStore,
    VersionConflict,
    conversation_folder,
    log_other_folder,
)

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
HOSTILE = [
    "",
    "..",
    "../" + "a" * 29,
    "a" * 31,
    "A" * 32,
    "a" * 32 + "\n",
    "a" * 33,
    "/etc/passwd",
    "a" * 31 + "\0",
    "ａ" * 32,
]


def message(identity: str, parent: str | None = None, content: str = "hello", role: str = "user") -> dict[str, Any]:
    return {"id": identity, "parent": parent, "role": role, "content": content}


def talk(title: str = "A talk", **fields: Any) -> dict[str, Any]:
    return {"title": title, "messages": [message(A), message(B, A, "Good day", "assistant")], **fields}


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "kept")


def test_a_stored_conversation_is_read_again(store: ConversationStore, tmp_path: Path) -> None:
    made = store.create("me", talk(settings={"temperature": 0.5, "stop": "\n"}, system="Be kind. 你好"))
    assert made["version"] == 1
    assert made["current"] == B
    assert ConversationStore(tmp_path / "kept").get("me", made["id"]) == made


def test_storing_the_same_id_twice_is_a_conflict(store: ConversationStore) -> None:
    """A page makes the id: where the answer to its first try was lost, the second finds what is there."""
    made = store.create("me", talk(id=C, version="7"))
    assert (made["id"], made["version"]) == (C, 1)
    with pytest.raises(VersionConflict) as told:
        store.create("me", talk("again", id=C))
    assert told.value.version == 1
    assert store.get("me", C) == made
    assert store.create("you", talk("theirs", id=C))["title"] == "theirs", "another's ids say nothing"
    assert store.create("me", talk())["id"] != store.create("me", talk())["id"]


@pytest.mark.parametrize("identity", [each for each in HOSTILE if each])
def test_invalid_ids_are_refused(store: ConversationStore, identity: str) -> None:
    with pytest.raises(InvalidConversation, match="32 hexadecimal digits"):
        store.create("me", talk(id=identity))


def test_an_import_has_ids_of_the_stores_own(store: ConversationStore) -> None:
    bundle = {"format": "sporelm-conversations", "format_version": 1, "conversations": [talk(id="../../etc")] * 2}
    first, second = store.import_all("me", bundle)
    assert first["id"] != second["id"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes of files")
def test_files_are_private(store: ConversationStore) -> None:
    store.create("me", talk())
    (folder,) = store.folder.iterdir()
    file, lock = sorted(folder.iterdir(), reverse=True)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (store.folder, folder, file, lock)]
    assert modes == [0o700, 0o700, 0o600, 0o600]


@pytest.mark.parametrize("identity", HOSTILE)
def test_hostile_ids_find_nothing(store: ConversationStore, identity: str) -> None:
    store.create("me", talk())
    for act in (store.get, store.delete, store.export, lambda owner, name: store.change(owner, name, {"version": 1})):
        with pytest.raises(ConversationNotFound):
            act("me", identity)


@pytest.mark.parametrize("owner", ["../me", "", "me\0", "you", "\ud800", "x" * 10_000])
def test_other_keys_have_other_conversations(store: ConversationStore, owner: str) -> None:
    mine = store.create("me", talk())
    assert store.page(owner).total == 0
    with pytest.raises(ConversationNotFound):
        store.get(owner, mine["id"])
    with pytest.raises(ConversationNotFound):
        store.change(owner, mine["id"], {"version": 1, "title": "stolen"})
    with pytest.raises(ConversationNotFound):
        store.delete(owner, mine["id"])
    theirs = store.create(owner, talk("theirs"))
    assert [row["id"] for row in store.page(owner).conversations] == [theirs["id"]]
    assert all(path.parent == store.folder for path in store.folder.iterdir())
    assert store.get("me", mine["id"]) == mine


def test_pages_begin_with_what_changed_last(store: ConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 100))
    monkeypatch.setattr("sporelm.serve.conversations.conversation_store._now", lambda: next(clock))
    made = [store.create("me", talk(str(index))) for index in range(4)]
    store.change("me", made[0]["id"], {"version": 1, "title": "changed"})
    page = store.page("me", offset=0, limit=3)
    assert ([row["title"] for row in page.conversations], page.total) == (["changed", "3", "2"], 4)
    assert [row["title"] for row in store.page("me", offset=3).conversations] == ["1"]
    assert "messages" not in page.conversations[0]
    assert page.conversations[0]["num_messages"] == 2


def test_a_change_adds_replaces_and_removes(store: ConversationStore) -> None:
    made = store.create("me", talk())
    added = message(C, A, "Another answer", "assistant")
    after = store.change(
        "me", made["id"], {"version": 1, "messages": [message(A, content="Hello!"), added], "current": C}
    )
    assert [part["content"] for part in after["messages"]] == ["Hello!", "Good day", "Another answer"]
    assert (after["version"], after["current"]) == (2, C)
    after = store.change("me", made["id"], {"version": 2, "remove": [C]})
    assert [part["id"] for part in after["messages"]] == [A, B]
    assert after["current"] == B
    after = store.change("me", made["id"], {"version": 3, "remove": [A]})
    assert (after["messages"], after["current"]) == ([], None), "what follows a message goes with it"


def test_two_tabs_do_not_overwrite_each_other(store: ConversationStore) -> None:
    made = store.create("me", talk())
    store.change("me", made["id"], {"version": 1, "title": "first"})
    with pytest.raises(VersionConflict) as told:
        store.change("me", made["id"], {"version": 1, "title": "second"})
    assert told.value.version == 2
    assert store.get("me", made["id"])["title"] == "first"


def answered(content: str, **fields: Any) -> dict[str, Any]:
    """A talk whose answer has come so far."""
    return {"messages": [message(A), message(B, A, content, "assistant") | fields]}


def test_a_closing_page_can_send_its_last_change_without_knowing_the_version(store: ConversationStore) -> None:
    last = message(B, A, "upon a time", "assistant") | {"reasoning": "m, a tale"}
    change = {"version": [1, 2], "messages": [last | {"kept": {"content": 5, "reasoning": 1}}]}
    for others in (False, True):
        made = store.create("", answered("Once ", reasoning="H"))
        if others:  # the save that was under way has finished
            grown = answered("Once upon", reasoning="Hm, a")["messages"][1:]
            store.change("", made["id"], {"version": 1, "messages": grown})
        after = store.change("", made["id"], change)
        assert after["version"] == 2 + others
        assert after["messages"] == answered("Once upon a time", reasoning="Hm, a tale")["messages"]
    with pytest.raises(VersionConflict, match="to version 3 since 1"):
        store.change("", made["id"], change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": []}, "version is"),
        ({"version": [1] * 5}, "version is"),
        ({"version": [1, True]}, "version is"),
        ({"kept": {"content": 6}}, "kept content is 6: the message has 5 characters"),
        ({"kept": {"content": -1}}, "kept content is -1"),
        ({"kept": {"content": True}}, "kept content is True"),
        ({"kept": {"reasoning": 1}}, "kept reasoning is 1: the message has 0"),
        ({"kept": {"role": 1}}, "role"),
        ({"kept": 5}, "kept"),
        ({"kept": {"content": 1}, "id": C}, "kept content is 1: the message has 0"),
        ({"kept": {"content": 1}, "content": 7}, "content"),
    ],
)
def test_invalid_kept_lengths_are_refused(store: ConversationStore, change: dict[str, Any], words: str) -> None:
    change = dict(change)
    made = store.create("", answered("Once "))
    version = change.pop("version", [1])
    with pytest.raises(InvalidConversation, match=words):
        store.change("", made["id"], {"version": version, "messages": [message(B, A, "more", "assistant") | change]})
    assert store.get("", made["id"])["version"] == 1


def test_threads_and_stores_on_one_folder_lose_nothing(store: ConversationStore) -> None:
    made = store.create("me", talk(messages=[]))
    failures: list[BaseException] = []

    def add(number: int) -> None:
        other = store if number % 2 else ConversationStore(store.folder)
        try:
            while True:
                version = other.get("me", made["id"])["version"]
                try:
                    other.change("me", made["id"], {"version": version, "messages": [message(f"{number:032x}")]})
                    return
                except VersionConflict:
                    continue
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    after = store.get("me", made["id"])
    assert (len(after["messages"]), after["version"]) == (12, 13)
    left = sorted(path.name for path in next(store.folder.iterdir()).iterdir())
    assert left == [".lock", f"{made['id']}.json"], "no parts stay"


WRONG: dict[str, Any] = {
    "no object": [],
    "an unknown field": {"nmae": "x"},
    "a title of another type": {"title": 7},
    "half a surrogate pair": {"title": "\ud800"},
    "an unknown kind": {"kind": "party"},
    "messages of another type": {"messages": {}},
    "a message without content": {"messages": [{"id": A, "role": "user"}]},
    "an unknown role": {"messages": [message(A, role="root")]},
    "an id that is a path": {"messages": [message("../" * 10 + "aa")]},
    "an id twice": {"messages": [message(A), message(A)]},
    "a parent that is itself": {"messages": [message(A, A)]},
    "a parent that comes later": {"messages": [message(A, B), message(B)]},
    "an unknown current": {"current": A},
    "settings that are deep": {"settings": {"a": {"b": 1}}},
    "settings with odd names": {"settings": {"__proto__": 1}},
    "a setting that is NaN": {"settings": {"temperature": float("nan")}},
    "a number beyond all": {"settings": {"seed": 10**400}},
    "too many settings": {"settings": {f"s{index}": 1 for index in range(33)}},
    "a time before all": {"created": -1},
    "an error without a code": {"messages": [message(A) | {"error": {"tokens": 5}}]},
    "an error with an odd code": {"messages": [message(A) | {"error": {"code": "<b>"}}]},
    "an error that is deep": {"messages": [message(A) | {"error": {"code": "x", "more": {}}}]},
    "an error that is a number": {"messages": [message(A) | {"error": 5}]},
    "an invalid context start": {"messages": [message(A) | {"context_start": "../x"}]},
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_invalid_conversations_are_not_stored(store: ConversationStore, value: Any) -> None:
    with pytest.raises(InvalidConversation):
        store.create("me", value)
    assert not store.folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"x": 1},
        {"title": None},
        {"current": C},
        {"remove": "all"},
        {"remove": ["../x"]},
        {"messages": [message(A, B)]},
        {"messages": [message(C, "d" * 32)]},
        {"messages": [message(C, A)], "remove": [A], "current": C},
    ],
    ids=str,
)
def test_an_invalid_change_changes_nothing(store: ConversationStore, change: dict[str, Any]) -> None:
    made = store.create("me", talk())
    with pytest.raises(InvalidConversation):
        store.change("me", made["id"], {"version": 1, **change})
    assert store.get("me", made["id"]) == made


SMALL = ConversationLimits(
    title=10, content=100, messages=3, conversation_bytes=2_000, conversations=2, owner_bytes=3_000
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (talk("eleven char"), "title has 11 characters: at most 10"),
        ({"messages": [message(A, content="x" * 101)]}, "content has 101 characters: at most 100"),
        ({"messages": [message(f"{index:032x}") for index in range(4)]}, "4 messages: at most 3"),
        ({"system": "é" * 1_000}, "bytes: at most 2000"),
    ],
)
def test_sizes_are_bounded(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(TooLarge, match=words):
        ConversationStore(tmp_path, SMALL).create("me", value)


def test_counts_are_bounded(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path, SMALL)
    first = store.create("me", {"system": "x" * 1_500})
    second = store.create("me", {})
    with pytest.raises(TooLarge, match="at most 2 are stored; delete some"):
        store.create("me", {})
    with pytest.raises(TooLarge, match="at most 3000 are stored"):
        store.change("me", second["id"], {"version": 1, "system": "x" * 1_500})
    assert store.create("you", {})["version"] == 1, "another's share is not used up"
    store.delete("me", first["id"])
    assert store.change("me", second["id"], {"version": 1, "system": "x" * 1_500})["version"] == 2


def test_an_export_comes_back(store: ConversationStore) -> None:
    made = [store.create("me", talk(title)) for title in ("one", "two")]
    text = "".join(store.export("me"))
    assert len(store.import_all("you", json.loads(text))) == 2
    found = [store.get("you", row["id"]) for row in store.page("you").conversations]
    for before, after in zip(sorted(made, key=str), sorted(found, key=str), strict=True):
        assert before["id"] != after["id"]
    assert sorted(part["title"] for part in found) == ["one", "two"]
    assert all(part["messages"] == made[0]["messages"] for part in found)
    single = json.loads("".join(store.export("me", made[0]["id"])))
    assert [part["title"] for part in single["conversations"]] == ["one"]


@pytest.mark.parametrize(
    "bundle",
    [
        [],
        {"format": "other"},
        {"format": "sporelm-conversations", "format_version": 2},
        {"format": "sporelm-conversations", "format_version": 1, "conversations": [talk(), {"title": 1}]},
    ],
)
def test_an_import_is_atomic(store: ConversationStore, bundle: Any) -> None:
    with pytest.raises(InvalidConversation):
        store.import_all("me", bundle)
    assert store.page("me").total == 0


def test_a_failed_import_leaves_no_files(store: ConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from sporelm.serve.conversations import conversation_store

    bundle = json.loads("".join(store.export("me", store.create("me", talk())["id"])))
    bundle["conversations"] *= 3
    write, written = conversation_store._write, list[Path]()

    def third_fails(path: Path, data: bytes) -> None:
        if len(written) == 2:
            raise RequestError("the conversation cannot be written: No space left on device; see the log")
        write(path, data)
        written.append(path)

    monkeypatch.setattr(conversation_store, "_write", third_fails)
    with pytest.raises(RequestError, match="No space left"):
        store.import_all("me", bundle)
    assert store.page("me").total == 1
    assert not any(path.exists() for path in written)


def test_an_import_respects_the_limits_of_a_key(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path, SMALL)
    bundle = {"format": "sporelm-conversations", "format_version": 1, "conversations": [{}, {}, {}]}
    with pytest.raises(TooLarge, match="3 conversations: at most 2 are stored"):
        store.import_all("me", bundle)
    assert store.page("me").total == 0


def test_a_deletion_during_a_change_persists(store: ConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server on the folder deletes while this one changes: it waits for the end of the change."""
    from sporelm.serve.conversations import conversation_store

    made = store.create("me", talk())
    other = ConversationStore(store.folder)
    write = conversation_store._write
    deleting = threading.Thread(target=lambda: other.delete("me", made["id"]))

    def slowly(path: Path, data: bytes) -> None:
        deleting.start()
        deleting.join(0.05)
        write(path, data)

    monkeypatch.setattr(conversation_store, "_write", slowly)
    store.change("me", made["id"], {"version": 1, "title": "Other"})
    deleting.join(60)
    assert store.page("me").total == 0


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version": 1, "x": 1}', b"\xff", b"[" * 100_000, b'{"title": "a"}']
)
def test_a_damaged_file_is_ignored(store: ConversationStore, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    made = store.create("me", talk())
    (folder,) = store.folder.iterdir()
    (folder / f"{C}.json").write_bytes(data)
    (folder / "notes.txt").write_text("not ours")
    assert [row["id"] for row in store.page("me").conversations] == [made["id"]]
    assert "is ignored" in caplog.text
    with pytest.raises(ConversationNotFound):
        store.get("me", C)


def test_servers_wait_for_each_other_but_not_for_killed_ones(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sporelm.files.store.folder_lock import take
    from sporelm.serve.conversations import conversation_store

    monkeypatch.setattr(conversation_store, "LOCK_SECONDS", 0.02)
    made = store.create("me", talk())
    with (next(store.folder.iterdir()) / ".lock").open("wb") as other:
        assert take(other)
        with pytest.raises(RequestError, match="another server is writing"):
            store.change("me", made["id"], {"version": 1, "title": "x"})
    # The system has taken the lock from the process that ended, the file is still there.
    assert store.change("me", made["id"], {"version": 1, "title": "x"})["version"] == 2


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports that such a folder does not exist")
def test_disk_errors_contain_no_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    store = ConversationStore(tmp_path / "file")
    for act in (
        lambda: store.create("me", talk()),
        lambda: store.page("me"),
        lambda: store.change("me", A, {"version": 1}),
    ):
        with pytest.raises(RequestError, match=r"the conversation cannot be (written|read)") as told:
            act()
        assert str(tmp_path) not in str(told.value)
        assert str(tmp_path) in caplog.text
        caplog.clear()


@pytest.fixture
def ask(store: ConversationStore) -> Iterator[Callable[..., Any]]:
    """Send a request to the routes, as the key "me" or another; answers are one word."""
    pytest.importorskip("starlette")
    pytest.importorskip("httpx")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from sporelm.serve.conversations.answer_job import AnswerRequest
    from sporelm.serve.conversations.answer_jobs import AnswerJobs
    from sporelm.serve.conversations.answer_stats import Progress
    from sporelm.serve.routes.conversations import conversation_routes

    async def answer(request: AnswerRequest) -> AsyncGenerator[Progress, None]:
        yield Progress("Good day", "", 3, 1, 0)
        await asyncio.sleep(60 if "slow" in request.messages[-1]["content"] else 0)
        yield Progress("", "", 3, 1, 0, 20.0, finish="stop")

    jobs = AnswerJobs(store)
    app = Starlette(routes=conversation_routes(jobs, lambda request: request.headers.get("key", ""), lambda _: answer))
    with TestClient(app) as client:  # one event loop for all requests

        def send(method: str, path: str, body: Any = None, key: str = "me") -> Any:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            return client.request(
                method, f"/api/ui/{path}", content=content, headers={"key": key, "content-type": "application/json"}
            )

        yield send


def test_routes_from_first_to_last(ask: Callable[..., Any]) -> None:
    made = ask("POST", "conversations", talk(id=C))
    assert (made.status_code, made.json()["id"]) == (200, C)
    assert ask("POST", "conversations", talk(id=C)).json()["error"]["version"] == 1
    place = f"conversations/{made.json()['id']}"
    assert ask("GET", place).json() == made.json()
    assert ask("GET", "conversations?q=day&limit=1").json()["total"] == 1
    changed = ask("PATCH", place, {"version": 1, "title": "Other"}).json()
    assert (changed["version"], changed["num_messages"], "messages" in changed) == (2, 2, False)
    conflict = ask("PATCH", place, {"version": 1, "title": "Third"})
    assert (conflict.status_code, conflict.json()["error"]["code"]) == (409, "version_conflict")
    assert conflict.json()["error"]["version"] == 2
    exported = ask("GET", f"{place}/export")
    assert "attachment" in exported.headers["content-disposition"]
    assert ask("GET", "export").json()["conversations"] == exported.json()["conversations"]
    assert len(ask("POST", "import", exported.content).json()["imported"]) == 1
    for method in ("GET", "DELETE", "PATCH"):
        assert ask(method, place, {"version": 2}, key="you").status_code == 404
    assert ask("GET", f"{place}/export", key="you").status_code == 404
    assert ask("DELETE", place).json() == {"deleted": made.json()["id"]}
    assert ask("GET", place).status_code == 404
    assert ask("GET", "conversations").headers["cache-control"] == "no-store"


def test_replies_match_their_description(ask: Callable[..., Any]) -> None:
    """Each answer is read as the type that /docs gives for it, fields that it does not name refused."""
    import msgspec

    from sporelm.serve.routes.conversations import PATH, conversation_endpoints

    replies = {(each.method, each.path): each.reply for each in conversation_endpoints()}

    def fits(method: str, path: str, reply: Any) -> Any:
        kind = replies[method, path]
        value = msgspec.convert(reply.json(), kind)
        assert msgspec.to_builtins(value) == reply.json()
        return reply.json()

    stats = {"tokens_per_s": 1.5, "first_token_s": 1}
    whole = talk(system="x", settings={"stop": "END", "seed": 3})
    whole["messages"][1] |= {"reasoning": "hm", "model": "m", "finish": "stop", "created": 5, "stats": stats}
    made = fits("POST", PATH, ask("POST", "conversations", whole))
    place = f"conversations/{made['id']}"
    fits("GET", PATH + "/{id}", ask("GET", place))
    fits("GET", PATH, ask("GET", "conversations?q=day"))
    fits("PATCH", PATH + "/{id}", ask("PATCH", place, {"version": 1, "title": "Other"}))
    bundle = fits("GET", "/api/ui/export", ask("GET", "export"))
    fits("GET", PATH + "/{id}/export", ask("GET", f"{place}/export"))
    fits("POST", "/api/ui/import", ask("POST", "import", bundle))
    fits("DELETE", PATH + "/{id}", ask("DELETE", place))
    error = ask("GET", place).json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    ask("POST", "conversations", {"id": C, "messages": [message(A, content="slow")]})
    place = f"conversations/{C}"
    begun = fits("POST", PATH + "/{id}/answers", ask("POST", f"{place}/answers", {"id": B, "parent": A, "model": "m"}))
    assert begun["answer"]["id"] == B
    assert fits("GET", PATH + "/{id}", ask("GET", place))["answering"] == B
    stopped = fits("DELETE", PATH + "/{id}/answers/{answer}", ask("DELETE", f"{place}/answers/{B}"))
    assert stopped == {"stopped": B}
    error = ask("DELETE", f"{place}/answers/{B}").json()["error"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "conversations", b"{", 400),
        ("POST", "conversations", b"[" * 100_000, 400),
        ("POST", "conversations", b'"\\ud800"', 400),
        ("POST", "conversations", {"title": "x" * 201}, 413),
        ("POST", "conversations", b" " * (5 << 20), 413),
        ("POST", "import", b"null", 400),
        ("GET", "conversations?limit=-1", None, 400),
        ("GET", "conversations?offset=9999999999999", None, 400),
        ("GET", "conversations?limit=%D9%A3", None, 400),
        ("GET", "conversations?q=" + "x" * 1001, None, 400),
        ("GET", "conversations/..%2F..%2Fetc%2Fpasswd", None, 404),
        ("PATCH", f"conversations/{A}", {"version": True}, 400),
        ("PATCH", f"conversations/{A}", {"version": 1}, 404),
        ("POST", f"conversations/{A}/answers", {"id": B, "parent": A, "model": "m"}, 404),
        ("POST", f"conversations/{A}/answers", {"id": "../..", "parent": A, "model": "m"}, 400),
        ("POST", f"conversations/{A}/answers", b" " * 70_000, 413),
        ("DELETE", f"conversations/{A}/answers/..%2F..", None, 404),
        ("GET", f"conversations/{A}/events", None, 404),
        ("GET", "conversations/..%2F..%2Fetc%2Fpasswd/events", None, 404),
    ],
)
def test_routes_refuse(ask: Callable[..., Any], method: str, path: str, body: Any, status: int) -> None:
    assert ask(method, path, body).status_code == status


def test_a_session_folder_without_conversations_tells_where_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = tmp_path / "usual"
    monkeypatch.setattr("sporelm.serve.conversations.conversation_store.default_folder", lambda: usual)
    assert (conversation_folder(None), conversation_folder(tmp_path)) == (usual, tmp_path / "conversations")
    log_other_folder(conversation_folder(tmp_path))
    ConversationStore(usual).create("", talk())
    log_other_folder(conversation_folder(None))
    assert not caplog.records, "there is nothing to find, or it is where one looks"
    log_other_folder(conversation_folder(tmp_path))
    assert str(usual) in caplog.text
    assert str(tmp_path / "conversations") in caplog.text
    caplog.clear()
    ConversationStore(conversation_folder(tmp_path)).create("", talk())
    log_other_folder(conversation_folder(tmp_path))
    assert not caplog.records
