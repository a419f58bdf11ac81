"""Bars that stay until what they tell of is over: a server out of reach, a key that is missing."""

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, texts, until

BARS = "[...document.querySelectorAll('.bar')].map(node => node.innerText.split('\\n')[0])"
AWAY = "Server unreachable, retrying…"
LOADED = "document.querySelectorAll('#model option').length === 2"


def test_a_server_that_is_away_loses_nothing(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="Failed to load resource")
    say(page, "hello")
    server.close()
    page.fill("#composer-text", "are you there?")
    page.press("#composer-text", "Enter")
    until(page, f"{BARS}.join() === '{AWAY}'")
    until(page, "document.querySelector('.live .wait').innerText === 'Not sent yet…'")
    assert texts(page)[:3] == ["hello", "You said: hello.", "are you there?"]
    page.fill("#composer-text", "half a thought")
    page.wait_for_timeout(1500)
    assert page.evaluate(BARS) == [AWAY], "it stays"
    serve(port=server.port)
    page.wait_for_selector(DONE)
    assert page.evaluate(BARS) == []
    assert texts(page)[3] == "You said: are you there?."
    assert page.input_value("#composer-text") == "half a thought"
    assert page.locator(".notice").count() == 0, "one thing is told once"


@pytest.mark.all
def test_a_chat_that_is_opened_while_the_server_is_away_comes_later(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="Failed to load resource")
    say(page, "first")
    place = page.url
    page.click("#new-chat")
    say(page, "second")
    server.close()
    page.locator("#list a", has_text="first").click()
    until(page, f"{BARS}.join() === '{AWAY}'")
    assert texts(page) == ["second", "You said: second."], "what is open stays readable"
    serve(port=server.port)
    until(page, "document.querySelector('article .body').innerText === 'first'")
    assert page.url == place
    page.wait_for_selector(DONE)
    assert page.evaluate(BARS) == []


@pytest.mark.all
def test_an_unsent_question_can_be_stopped(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="Failed to load resource")
    say(page, "hello")
    server.close()
    page.fill("#composer-text", "are you there?")
    page.press("#composer-text", "Enter")
    until(page, "document.querySelector('.live .wait').innerText === 'Not sent yet…'")
    page.click("#stop")
    until(page, "!document.querySelector('.live')")
    assert texts(page) == ["hello", "You said: hello.", "are you there?"]
    again = serve(port=server.port)
    until(page, f"{BARS}.length === 0")
    assert again.requests == []
    page.locator("article.user").last.get_by_role("button", name="Regenerate").click()
    page.wait_for_selector(DONE)
    assert texts(page)[3] == "You said: are you there?."


def test_a_key_that_is_not_given_leaves_a_bar(serve: Serve, open_page: Open) -> None:
    server = serve(key="secret")
    page = open_page(server.url, expected="401", wait=False)
    page.get_by_label("API key", exact=True).wait_for()
    page.keyboard.press("Escape")
    until(page, f"{BARS}.join() === 'An API key is needed'")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(300)
    assert page.locator("#ask").is_hidden(), "the dialog does not come back by itself"
    assert page.evaluate(BARS) == ["An API key is needed"]
    page.locator(".bar").get_by_role("button").click()
    page.get_by_label("API key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    until(page, LOADED)
    until(page, f"{BARS}.length === 0")
    say(page, "hello")
    assert texts(page) == ["hello", "You said: hello."]


@pytest.mark.all
def test_an_open_chat_stays_readable_without_a_key(serve: Serve, open_page: Open) -> None:
    server = serve(key="secret")
    page = open_page(server.url, expected="401", wait=False)
    page.get_by_label("API key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    until(page, LOADED)
    say(page, "hello")
    server.key = "another"
    page.fill("#composer-text", "more")
    page.press("#composer-text", "Enter")
    page.get_by_label("API key", exact=True).wait_for()
    page.keyboard.press("Escape")
    until(page, f"{BARS}.join() === 'An API key is needed'")
    assert texts(page)[:3] == ["hello", "You said: hello.", "more"]
    server.key = "secret"
    page.locator(".bar").get_by_role("button").click()
    page.get_by_label("API key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    until(page, f"{BARS}.length === 0")
    assert texts(page) == ["hello", "You said: hello.", "more", "You said: more."]
