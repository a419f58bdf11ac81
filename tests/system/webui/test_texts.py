"""The page that completes a text: kept on the server, there on the next device, undone, stopped."""

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import until
from system.webui.traffic import wait_for_quiet

VALUE = "document.querySelector('#complete-text').value"


@pytest.mark.all
def test_a_text_is_completed_and_kept(serve: Serve, open_page: Open) -> None:
    server = serve(chat=False)
    page = open_page(server.url)
    until(page, "location.hash === '#/complete'")
    page.fill("#complete-text", "Once")
    page.keyboard.press("Control+Enter")
    until(page, f"{VALUE} === 'OnceYou said: Once.'")
    until(page, "document.querySelector('#complete-stats').innerText.includes('48 of 64')")
    assert server.requests[-1]["prompt"] == "Once"
    page.wait_for_selector("#complete-run")
    page.click("#complete-undo")
    assert page.input_value("#complete-text") == "Once"
    page.fill("#complete-text", "slow")
    page.click("#complete-run")
    until(page, f"{VALUE}.includes('word2')")
    page.keyboard.press("Escape")
    page.wait_for_selector("#complete-run")
    until(page, "/^#.complete.[0-9a-f]{32}$/.test(location.hash)")
    wait_for_quiet(page)
    text = page.input_value("#complete-text")
    page.reload()
    until(page, f"{VALUE} !== ''")
    assert page.input_value("#complete-text") == text
    device = open_page(server.url)  # which knows nothing yet
    device.locator("#list a").click()
    until(device, f"{VALUE} !== ''")
    assert device.input_value("#complete-text") == text
    assert device.title() == "Once · Sporelm"


@pytest.mark.all
def test_texts_and_chats_lie_side_by_side(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(f"{server.url}#/complete")
    page.fill("#complete-text", "first text")
    until(page, "document.querySelectorAll('#list li').length === 1")
    page.click("#complete-new")
    assert page.input_value("#complete-text") == ""
    page.fill("#complete-text", "second text")
    page.reload()  # before it is kept
    until(page, f"{VALUE} === 'second text'")
    until(page, "document.querySelectorAll('#list li').length === 2")
    page.get_by_role("link", name="first text").click()
    until(page, f"{VALUE} === 'first text'")
    page.keyboard.press("Control+,")
    page.fill("#set-max_tokens", "5")
    page.keyboard.press("Escape")
    page.click("#complete-run")
    until(page, f"{VALUE}.includes('You said')")
    page.wait_for_selector("#complete-run")
    assert server.requests[-1]["max_tokens"] == 5
    page.get_by_role("link", name="second text").click()
    until(page, f"{VALUE} === 'second text'")
    row = page.locator("#list li", has_text="second text")
    row.hover()
    row.locator("button").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    until(page, f"document.querySelectorAll('#list li').length === 1 && {VALUE} === ''")
