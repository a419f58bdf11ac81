"""The context of the model: tokens are counted before a message is sent, and nothing is left out unasked."""

from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.pretend_chat import PretendChat
from system.webui.test_web_chat import DONE, say, texts, until, wait_until_saved


def small(serve: Serve, context: int) -> PretendChat:
    """Start a server whose models have a context of this many letters."""
    server: PretendChat = serve()
    server.context, server.counts = context, True
    return server


def last_messages(server: PretendChat) -> list[str]:
    """Return the messages of the last request."""
    return [each["content"] for each in server.requests[-1]["messages"]]


def type_in(page: Any, text: str) -> None:
    page.fill("#composer-text", text)
    page.press("#composer-text", "Enter")


def test_the_oldest_are_left_out_when_the_reader_says_so(serve: Serve, open_page: Open) -> None:
    server = small(serve, 400)
    page = open_page(server.url)
    for letter in "ab":
        say(page, letter * 60)
    assert server.counted == [], "what surely fits is not counted"
    type_in(page, "c" * 200)
    page.locator("#overflow").wait_for()
    assert "the conversation has 462 tokens, and the model takes 400" in page.inner_text("#overflow p")
    assert page.input_value("#composer-text") == "c" * 200, "it stays where it can be edited"
    assert len(server.requests) == 2
    assert page.locator("article").count() == 4
    page.locator("#overflow").get_by_role("button", name="Leave out the 4 oldest messages").click()
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    assert last_messages(server) == ["c" * 200]
    assert len(texts(page)) == 6, "the conversation keeps them"
    line = page.locator(".cut")
    assert "The model is not shown the messages above" in line.inner_text()
    assert page.locator("article.user").last.locator(".cut").count() == 1
    page.reload()
    page.wait_for_selector(DONE)
    assert line.count() == 1
    line.get_by_role("button").click()
    until(page, "!document.querySelector('.cut')")


@pytest.mark.all
def test_a_message_that_does_not_fit_is_edited(serve: Serve, open_page: Open) -> None:
    server = small(serve, 400)
    page = open_page(server.url)
    say(page, "a" * 60)
    type_in(page, "b" * 500)
    page.locator("#overflow").wait_for()
    assert "This message alone is longer" in page.inner_text("#overflow p")
    page.locator("#overflow").get_by_role("button", name="Edit message").click()
    assert page.evaluate("document.activeElement.id") == "composer-text"
    assert page.locator("#overflow").is_hidden()
    type_in(page, "b" * 20)
    page.wait_for_selector(DONE)
    assert last_messages(server)[-1] == "b" * 20
    assert page.locator(".cut").count() == 0


@pytest.mark.all
def test_what_the_server_finds_too_long_offers_the_same(serve: Serve, open_page: Open) -> None:
    server = small(serve, 8192)
    page = open_page(server.url)
    for letter in "ab":
        say(page, letter * 60)
    server.context = 150
    page.reload()
    page.wait_for_selector(DONE)
    page.locator("article.assistant").last.get_by_role("button", name="Regenerate").click()
    note = page.locator("article.assistant:last-child .note.bad")
    note.wait_for()
    assert "the conversation has" in note.inner_text()
    assert "the model takes 150" in note.inner_text()
    stored = page.request.get(page.url.replace("#/c/", "api/ui/conversations/")).json()["messages"][-1]
    assert stored["error"]["code"] == "context_length_exceeded", "a code, no sentence"
    note.get_by_role("button", name="Edit message").click()
    assert page.locator("article.user").last.locator(".editor textarea").input_value() == "b" * 60
    page.keyboard.press("Escape")
    note.get_by_role("button", name="Leave out the oldest").click()
    until(page, "document.querySelector('.cut')")
    page.wait_for_selector(DONE)
    until(page, "!document.querySelector('article:last-child .note.bad:not([hidden])')")
    assert last_messages(server) == ["b" * 60]


ERRORS = [
    ({"code": "context_length_exceeded", "tokens": 9000, "context": 8192}, "9,000 tokens", "9,000 个词元"),
    ({"code": "request_timeout", "seconds": 600}, "longer than the 600 s", "600 秒"),
    ({"code": "refused", "detail": "the seed is out of range"}, "the seed is out of range", "the seed is out of range"),
    ({"code": "unheard_of"}, "error unheard_of", "错误 unheard_of"),
    ("the context holds 8192 tokens", "the context holds 8192 tokens", "the context holds 8192 tokens"),
]


@pytest.mark.all
def test_errors_are_told_in_the_readers_language(serve: Serve, open_page: Open) -> None:
    """Also those of older pages, which stored a sentence."""
    server = serve()
    page = open_page(server.url)
    messages: list[dict[str, Any]] = []
    for index, (error, _, _) in enumerate(ERRORS):
        question = {"id": f"{2 * index:032x}", "role": "user", "content": "?"}
        answer = {"id": f"{2 * index + 1:032x}", "role": "assistant", "content": "x", "finish": "error", "error": error}
        for each in (question, answer):
            messages.append(each | {"parent": messages[-1]["id"] if messages else None})
    data = {"id": "c" * 32, "messages": messages}
    assert page.request.post(f"{server.url}api/ui/conversations", data=data).ok
    for place, locale in ((1, "en-US"), (2, "zh-CN")):
        page = open_page(f"{server.url}#/c/{'c' * 32}", locale=locale)
        page.wait_for_selector(DONE)
        told = page.locator(".note").all_inner_texts()
        for row, note in zip(ERRORS, [note for note in told if note], strict=True):
            assert row[place] in note


@pytest.mark.all
def test_a_new_chat_begins_with_the_defaults(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    page.keyboard.press("Control+,")
    page.fill("#set-system", "Answer in French.")
    page.fill("#set-temperature", "0")
    page.keyboard.press("Escape")
    assert "System prompt" in page.inner_text("#given")
    say(page, "hello")
    assert server.requests[-1]["messages"][0]["role"] == "system"
    page.click("#new-chat")
    assert page.locator("#given").is_hidden()
    say(page, "hello again")
    assert [each["role"] for each in server.requests[-1]["messages"]] == ["user"]
    assert "temperature" not in server.requests[-1]
