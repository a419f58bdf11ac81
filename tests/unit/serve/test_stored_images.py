"""The pictures of the web chat's conversations: stored once, shown by messages, deleted with the last of them."""

import asyncio
import base64
import json
import os
import stat
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.serve.conversations import conversation_store
from sporelm.serve.conversations.answer_job import AnswerRequest
from sporelm.serve.conversations.answer_jobs import AnswerJobs
from sporelm.serve.conversations.answer_stats import Progress
from sporelm.serve.conversations.conversation_schema import ConversationLimits, InvalidConversation, TooLarge
from sporelm.serve.conversations.conversation_store import ConversationNotFound, ConversationStore
from sporelm.serve.conversations.message_branches import prompt_messages
from sporelm.serve.conversations.stored_images import (
    MAX_UNUSED_SECONDS,
    ImageMissing,
    ImageRef,
    image_id,
    media_type_of,
)

A, B, C, D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
PNG = b"\x89PNG\r\n\x1a\n first"
JPEG = b"\xff\xd8\xff second"
GIF = b"GIF89a third"


def question(identity: str, *images: bytes, parent: str | None = None, content: str = "hello") -> dict[str, Any]:
    shown = [{"id": image_id(image)} for image in images]
    return {"id": identity, "parent": parent, "role": "user", "content": content} | ({"images": shown} if shown else {})


def files(store: ConversationStore) -> list[str]:
    return sorted(path.name for path in store.folder.glob("*/images/*") if not path.name.startswith("."))


def names(*images: bytes) -> list[str]:
    suffix = {PNG: "png", JPEG: "jpg", GIF: "gif"}
    return sorted(f"{image_id(image)}.{suffix[image]}" for image in images)


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "kept")


def test_formats_are_told_by_their_first_bytes() -> None:
    known = {
        PNG: "image/png",
        JPEG: "image/jpeg",
        GIF: "image/gif",
        b"GIF87a": "image/gif",
        b"RIFF\x10\0\0\0WEBPVP8 ": "image/webp",
        b"BM1234": "image/bmp",
    }
    assert {data: media_type_of(data) for data in known} == known
    for data in (
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"<html>",
        b"RIFF\0\0\0\0WAVE",
        b"%PDF",
        b"\x89PNG",
    ):
        assert media_type_of(data) is None


def test_a_picture_is_stored_once_and_read_again(store: ConversationStore) -> None:
    identity = store.add_image("me", PNG)
    assert identity == store.add_image("me", PNG) == image_id(PNG)
    assert store.image("me", identity) == (PNG, "image/png")
    assert files(store) == names(PNG)
    made = store.create("me", {"messages": [question(A, PNG)]})
    assert store.get("me", made["id"])["messages"][0]["images"] == [{"id": identity}]
    (path,) = store.folder.glob("*/images/*.png")
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_pictures_of_another_key_do_not_exist(store: ConversationStore) -> None:
    identity = store.add_image("me", PNG)
    with pytest.raises(ConversationNotFound):
        store.image("you", identity)
    with pytest.raises(ImageMissing):
        store.create("you", {"messages": [question(A, PNG)]})


@pytest.mark.parametrize("identity", ["", "..", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 65, "*"])
def test_hostile_ids_find_nothing(store: ConversationStore, identity: str) -> None:
    store.add_image("me", PNG)
    with pytest.raises(ConversationNotFound):
        store.image("me", identity)
    with pytest.raises(InvalidConversation):
        store.create("me", {"messages": [question(A) | {"images": [{"id": identity}]}]})


def test_other_data_is_not_stored(store: ConversationStore, tmp_path: Path) -> None:
    for data in (b"", b"<svg/>", b"text"):
        with pytest.raises(InvalidConversation, match="it must be PNG, JPEG, WebP, GIF or BMP"):
            store.add_image("me", data)
    small = ConversationStore(tmp_path / "small", ConversationLimits(image_bytes=20, owner_bytes=30))
    with pytest.raises(TooLarge, match="at most 20"):
        small.add_image("me", PNG + b"x" * 20)
    small.add_image("me", PNG)
    with pytest.raises(TooLarge, match="of conversations and images: at most 30"):
        small.add_image("me", JPEG * 2)
    with pytest.raises(TooLarge, match="at most 30"):
        small.create("me", {"messages": [question(A, PNG)]})
    assert files(small) == names(PNG)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ("x", "must be a list"),
        (["x"], "must be an object"),
        ([{"id": 5}], "64 hexadecimal digits"),
        ([{}], "64 hexadecimal digits"),
        ([{"id": "a" * 64, "path": "x"}], "unknown field 'path'"),
        ([{"id": "a" * 64, "width": 0}], "width of an image is 0"),
        ([{"id": "a" * 64, "height": True}], "height of an image is True"),
        ([{"id": "a" * 64, "name": 5}], "name of an image is 5"),
        ([{"id": "a" * 64}], "is not stored: upload it first"),
    ],
)
def test_invalid_images_of_messages_are_refused(store: ConversationStore, images: Any, words: str) -> None:
    with pytest.raises(InvalidConversation, match=words):
        store.create("me", {"messages": [question(A) | {"images": images}]})
    with pytest.raises(TooLarge, match="at most 32"):
        store.create("me", {"messages": [question(A, *[PNG] * 33)]})
    with pytest.raises(InvalidConversation, match="of the assistant has images"):
        store.create("me", {"messages": [question(A, PNG) | {"role": "assistant"}]})


def test_pictures_are_deleted_with_the_last_message_that_shows_them(store: ConversationStore) -> None:
    for image in (PNG, JPEG, GIF):
        store.add_image("me", image)
    first = store.create("me", {"messages": [question(A, PNG, JPEG), question(B, GIF, parent=A)]})
    second = store.create("me", {"messages": [question(A, PNG)]})
    store.change("me", first["id"], {"version": 1, "remove": [B]})
    assert files(store) == names(PNG, JPEG)
    other = {"version": 2, "messages": [question(A, PNG)]}  # the message without one of its pictures
    store.change("me", first["id"], other)
    assert files(store) == names(PNG)
    store.delete("me", first["id"])
    assert files(store) == names(PNG), "the other conversation shows it still"
    ConversationStore(store.folder).delete("me", second["id"])  # by another server
    assert files(store) == []


def test_nothing_is_deleted_while_a_file_cannot_be_read(store: ConversationStore) -> None:
    store.add_image("me", PNG)
    first = store.create("me", {"messages": [question(A, PNG)]})
    second = store.create("me", {"messages": [question(A, PNG)]})
    (path,) = store.folder.glob(f"*/{second['id']}.json")
    text = path.read_text()
    path.write_text("{")
    store.delete("me", first["id"])
    path.write_text(text)
    assert store.get("me", second["id"])["messages"][0]["images"]
    assert files(store) == names(PNG)


def test_uploads_without_a_message_last_a_day(store: ConversationStore) -> None:
    store.add_image("me", PNG)
    store.add_image("me", JPEG)
    store.create("me", {"messages": [question(A, JPEG)]})
    old = time.time() - MAX_UNUSED_SECONDS - 60
    for path in store.folder.glob("*/images/*.*"):
        os.utime(path, (old, old))
    store.add_image("me", GIF)
    assert files(store) == names(JPEG, GIF)


def test_a_second_upload_starts_the_day_again(store: ConversationStore) -> None:
    store.add_image("me", PNG)
    (path,) = store.folder.glob("*/images/*.png")
    old = time.time() - MAX_UNUSED_SECONDS + 60
    os.utime(path, (old, old))
    store.add_image("me", PNG)
    assert path.stat().st_mtime > old + 60


def test_an_export_brings_its_pictures(store: ConversationStore, tmp_path: Path) -> None:
    for image in (PNG, JPEG, GIF):
        store.add_image("me", image)
    first = store.create("me", {"title": "one", "messages": [question(A, PNG, JPEG), question(B, PNG, parent=A)]})
    store.create("me", {"title": "two", "messages": [question(A, GIF)]})
    store.create("me", {"title": "three", "messages": [question(A)]})
    one = json.loads("".join(store.export("me", first["id"])))
    assert {identity: base64.b64decode(text) for identity, text in one["images"].items()} == {
        image_id(PNG): PNG,
        image_id(JPEG): JPEG,
    }
    everything = json.loads("".join(store.export("me")))
    other = ConversationStore(tmp_path / "other")
    assert len(other.import_all("you", everything)) == 3
    assert files(other) == names(PNG, JPEG, GIF)
    again = json.loads("".join(other.export("you")))
    assert again["images"] == everything["images"]
    without = {name: value for name, value in everything.items() if name != "images"}
    assert len(other.import_all("you", without)) == 3, "pictures that are stored already need not be in the file"
    with pytest.raises(ImageMissing):
        other.import_all("they", without)
    text_alone = "".join(store.export("me", store.page("me", "three").conversations[0]["id"]))
    assert "images" not in json.loads(text_alone), "without pictures a file is as it was"


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "must be an object"),
        ({image_id(PNG): "%%%"}, "not valid base64"),
        ({image_id(PNG): 5}, "not valid base64"),
        ({image_id(JPEG): base64.b64encode(PNG).decode()}, "other bytes than its id says"),
        ({"../../x": base64.b64encode(PNG).decode()}, "other bytes than its id says"),
        ({image_id(b"<svg/>"): base64.b64encode(b"<svg/>").decode()}, "it must be PNG"),
        ({image_id(PNG): base64.b64encode(PNG).decode()}, "is not stored"),  # one of two
    ],
)
def test_an_import_with_other_pictures_adds_nothing(store: ConversationStore, images: Any, words: str) -> None:
    bundle = {"format": "sporelm-conversations", "format_version": 1, "images": images}
    with pytest.raises(InvalidConversation, match=words):
        store.import_all("me", bundle | {"conversations": [{"messages": [question(A, PNG, JPEG)]}]})
    assert store.page("me").total == 0
    assert files(store) == []


def test_a_full_disk_leaves_no_part_of_an_import(store: ConversationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = conversation_store._write

    def second_fails(path: Path, data: bytes) -> None:
        if path.suffix == ".jpg":
            raise conversation_store._disk_error("written", path, OSError(28, "no space"))
        write(path, data)

    monkeypatch.setattr(conversation_store, "_write", second_fails)
    images = {image_id(image): base64.b64encode(image).decode() for image in (PNG, JPEG)}
    bundle = {"format": "sporelm-conversations", "format_version": 1, "images": images}
    with pytest.raises(RequestError, match="no space"):
        store.import_all("me", bundle | {"conversations": [{"messages": [question(A, PNG, JPEG)]}]})
    assert files(store) == []
    assert store.page("me").total == 0


# ---- the prompt


def refs(*images: bytes) -> list[dict[str, Any]]:
    return [{"type": "image", "image": ImageRef(image_id(image)), "path": "an image"} for image in images]


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def test_a_prompt_has_the_pictures_before_the_text() -> None:
    answer = {"id": B, "parent": A, "role": "assistant", "content": "A cat."}
    messages = [question(A, PNG, JPEG, content="Compare"), answer, question(C, GIF, parent=B, content="")]
    conversation = {"system": "Be brief.", "messages": messages}
    assert prompt_messages(conversation, C) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [*refs(PNG, JPEG), text("Compare")]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": refs(GIF)},
    ]


def test_questions_in_a_row_become_one_with_all_their_pictures() -> None:
    messages = [
        question(A, content="one"),
        question(B, PNG, parent=A, content="two"),
        question(C, parent=B, content="3"),
    ]
    assert prompt_messages({"system": "", "messages": messages}, C) == [
        {
            "role": "user",
            "content": [text("one"), text("\n\n"), *refs(PNG), text("two"), text("\n\n"), text("3")],
        }
    ]


def test_a_job_reads_the_pictures_of_its_prompt(store: ConversationStore) -> None:
    store.add_image("me", PNG)
    store.create("me", {"id": D, "messages": [question(A, PNG)]})
    asked: list[AnswerRequest] = []

    async def source(request: AnswerRequest) -> AsyncGenerator[Progress, None]:
        asked.append(request)
        yield Progress("A cat.", finish="stop")

    async def answer(identity: str) -> dict[str, Any]:
        job = await AnswerJobs(store).start("me", D, {"id": identity, "parent": A, "model": "m"}, source)
        await job.ended.wait()
        return job.message

    assert asyncio.run(answer(B))["content"] == "A cat."
    assert asked[0].messages == [{"role": "user", "content": [refs(PNG)[0] | {"image": PNG}, text("hello")]}]
    (path,) = store.folder.glob("*/images/*.png")
    path.unlink()
    failed = asyncio.run(answer(C))
    assert (failed["finish"], failed["error"]["code"]) == ("error", "image_missing")
    assert len(asked) == 1


# ---- the routes


@pytest.fixture
def client(store: ConversationStore) -> Iterator[Any]:
    pytest.importorskip("httpx")
    from starlette.applications import Starlette
    from starlette.testclient import TestClient

    from sporelm.serve.routes.conversations import conversation_routes

    async def answer(request: AnswerRequest) -> AsyncGenerator[Progress, None]:
        yield Progress("ok", finish="stop")

    routes = conversation_routes(AnswerJobs(store), lambda request: request.headers["key"], lambda request: answer)
    with TestClient(Starlette(routes=routes), headers={"key": "me"}) as client:
        yield client


def test_a_picture_is_uploaded_and_shown(client: Any) -> None:
    reply = client.post("/api/ui/images", content=PNG, headers={"content-type": "image/png"})
    assert reply.json() == {"id": image_id(PNG), "type": "image/png", "bytes": len(PNG)}
    shown = client.get(f"/api/ui/images/{image_id(PNG)}")
    assert shown.content == PNG
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert client.get(f"/api/ui/images/{image_id(PNG)}", headers={"key": "you"}).status_code == 404


def test_a_file_that_says_it_is_a_picture_is_looked_at(client: Any) -> None:
    page = b"<html><script>alert(1)</script></html>"
    refused = client.post("/api/ui/images", content=page, headers={"content-type": "image/png"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")
    lying = client.post("/api/ui/images", content=GIF + page, headers={"content-type": "image/svg+xml"}).json()
    assert client.get(f"/api/ui/images/{lying['id']}").headers["content-type"] == "image/gif"


Send = Callable[..., Any]


@pytest.mark.parametrize(
    ("send", "status", "code"),
    [
        (lambda client: client.post("/api/ui/images", content=PNG), 400, "invalid_value"),
        (lambda client: client.post("/api/ui/images", content=PNG, headers={"content-type": "text/plain"}), 400, None),
        (lambda client: client.get("/api/ui/images/x"), 404, "not_found"),
        (lambda client: client.get("/api/ui/images/..%2f..%2fetc"), 404, None),
        (
            lambda client: client.post("/api/ui/conversations", json={"messages": [question(A, PNG)]}),
            400,
            "image_missing",
        ),
    ],
)
def test_routes_refuse(client: Any, send: Send, status: int, code: str | None) -> None:
    reply = send(client)
    assert reply.status_code == status
    assert code is None or reply.json()["error"]["code"] == code
