"""The API key in a browser: asked for by the page, refused, remembered, forgotten."""

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, texts, until, wait_until_saved
from system.webui.traffic import wait_for_quiet

READY = "document.querySelectorAll('#model option').length === 2"
STORES = "JSON.stringify([{...sessionStorage}, {...localStorage}])"


def test_a_key_is_asked_for(serve: Serve, open_page: Open) -> None:
    page = open_page(serve(key="secret").url, expected="401", wait=False)
    field = page.get_by_label("API key", exact=True)
    assert field.get_attribute("type") == "password"
    field.fill("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#ask [role=alert]")
    assert "wrong" not in page.evaluate(STORES), "a key that is refused is forgotten"
    field.fill("secret")
    page.keyboard.press("Enter")
    until(page, READY)
    assert page.locator("#ask").is_hidden()
    assert "secret" in page.evaluate("sessionStorage['sporelm.key']")
    assert "secret" not in page.evaluate("JSON.stringify({...localStorage})"), "it goes when the tab is closed"


def test_a_key_that_no_request_can_carry_is_not_valid(serve: Serve, open_page: Open) -> None:
    server = serve(key="secret")
    page = open_page(server.url, expected="401", wait=False)
    field = page.get_by_label("API key", exact=True)
    field.fill("ключ")
    page.keyboard.press("Enter")
    page.locator("#ask [role=alert]", has_text="This key is not valid").wait_for()
    assert "ключ" not in page.evaluate(STORES)
    assert page.locator(".bar", has_text="unreachable").count() == 0
    page.evaluate("localStorage['sporelm.key'] = 'ключ'")  # as older pages stored it
    page.reload()
    page.locator("#ask [role=alert]", has_text="This key is not valid").wait_for()
    page.keyboard.press("Escape")
    page.locator(".bar", has_text="An API key is needed").get_by_role("button").click()
    field.fill("secret")
    page.keyboard.press("Enter")
    until(page, READY)
    assert "ключ" not in page.evaluate(STORES)


@pytest.mark.all
def test_a_key_is_remembered_and_forgotten(serve: Serve, open_page: Open) -> None:
    server = serve(key="secret")
    page = open_page(server.url, expected="401", wait=False)
    page.get_by_label("API key", exact=True).fill("secret")
    page.get_by_label("Remember in this browser").check()
    page.keyboard.press("Enter")
    until(page, READY)
    say(page, "hello")
    page.reload()
    page.wait_for_selector(DONE)
    other = open_page(server.url, beside=page)  # another tab of the same browser
    assert other.locator("#list li").count() == 1
    page.keyboard.press("Control+,")
    assert "Saved in this browser." in page.inner_text("#settings")
    page.get_by_role("button", name="Forget").click()
    page.get_by_label("API key", exact=True).wait_for()
    assert "secret" not in page.evaluate(STORES)
    until(page, "!document.querySelector('#list li, #messages article')")


@pytest.mark.all
def test_a_key_that_is_taken_away_is_asked_for_again(serve: Serve, open_page: Open) -> None:
    server = serve(key="secret")
    page = open_page(server.url, expected="401", wait=False)
    page.get_by_label("API key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    until(page, READY)
    wait_for_quiet(page)
    server.key = "another"
    page.fill("#composer-text", "hello")
    page.press("#composer-text", "Enter")
    page.get_by_label("API key", exact=True).fill("another")
    page.keyboard.press("Enter")
    until(page, "!document.querySelector('#ask').open")
    wait_until_saved(page)
    assert page.locator("#list li").count() == 1, "a chat that was not saved yet belongs to the new key"
    say(page, "hello again")
    assert texts(page) == ["hello", "You said: hello.", "hello again", "You said: hello again."]
