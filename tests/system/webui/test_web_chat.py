"""The web chat in a browser, against canned answers: talking, stopping, branching, and what is kept."""

import re
import time
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.traffic import wait_for_quiet

DONE = "article.assistant:last-child:not(.live)"


def say(page: Any, text: str, wait: bool = True) -> None:
    """Type a message and send it; wait until the answer is there, and kept."""
    with page.expect_response(lambda reply: "/api/ui/" in reply.url and reply.request.method in ("POST", "PATCH")):
        page.fill("#composer-text", text)
        page.press("#composer-text", "Enter")
    if wait:
        page.wait_for_selector(DONE)
        wait_until_saved(page)


def until(page: Any, condition: str, seconds: float = 60) -> None:
    """Wait for a condition. Playwright's own way needs eval in the page, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never came: {condition}"
        page.wait_for_timeout(15)


def wait_until_saved(page: Any) -> None:
    """Wait until the server has everything."""
    until(page, "document.title && location.hash.startsWith('#/c/')")
    wait_for_quiet(page)


def texts(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("article .body").all_inner_texts()]


def test_a_chat_streams_markdown_and_survives_a_reload(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "some markdown, please")
    answer = page.locator("article.assistant")
    for _ in range(2):
        answer.locator(".katex").first.wait_for()
        assert answer.locator("[data-formula]").count() == 3
        assert answer.locator(".katex-display").count() == 1
        assert "$5, not $10" in answer.inner_text()
        answer.locator("pre .hljs-keyword").first.wait_for()
        assert answer.locator("td").all_inner_texts() == ["red", "700 nm", "violet", "400 nm"]
        assert answer.locator("a[href]").evaluate_all("nodes => nodes.map(node => [node.href, node.rel])") == [
            ["https://example.org/rainbow", "noopener noreferrer nofollow"]
        ]
        assert "<script>window.broken = 1</script>" in answer.inner_text(), "text other than markdown is shown as it is"
        assert "List<String> stays." in answer.inner_text()
        assert page.evaluate("window.broken") is None
        assert answer.locator(".stats").inner_text().count("token") >= 4
        assert "48 of 64 prompt tokens cached" in answer.locator(".stats").inner_text()
        assert re.search(r"\d+ of 8,192 context tokens", page.inner_text("#context"))
        page.reload()
        page.wait_for_selector(DONE)
    assert page.locator("#list li").count() == 1
    assert "some markdown" in page.title()


@pytest.mark.all
def test_an_answer_is_stopped(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "slow words", wait=False)
    until(page, "document.querySelector('article.assistant .body').innerText.includes('word3')")
    assert page.locator("#send").is_hidden()
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    shown = texts(page)[1]
    assert shown.startswith("word0 word1 word2 word3")
    assert page.locator("article.assistant .note").inner_text().split() == ["Stopped", "Continue"]
    page.reload()
    page.wait_for_selector(DONE)
    assert texts(page)[1] == shown
    page.wait_for_timeout(100)
    assert server.cut == 1, "the server's work ended too"


@pytest.mark.all
def test_branches(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "one")
    say(page, "two")
    page.locator("article").nth(1).get_by_role("button", name="Regenerate").click()
    page.wait_for_selector("article.assistant .branch")
    page.wait_for_selector(DONE)
    assert texts(page) == ["one", "You said: one."], "a new answer begins a branch of its own"
    assert page.locator("article.assistant .branch").inner_text().strip() == "2/2"
    page.get_by_role("button", name="Previous version").click()
    assert texts(page) == ["one", "You said: one.", "two", "You said: two."], "the other branch is whole"
    page.locator("article").nth(2).hover()
    page.locator("article").nth(2).get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit message").fill("three")
    page.keyboard.press("Enter")
    until(page, "document.querySelectorAll('article .body')[2]?.innerText === 'three'")
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    after = ["one", "You said: one.", "three", "You said: three."]
    assert texts(page) == after
    assert [part["content"] for part in server.requests[-1]["messages"]] == ["one", "You said: one.", "three"]
    page.reload()
    page.wait_for_selector(DONE)
    assert texts(page) == after, "the branch that was shown is the one that comes back"


@pytest.mark.all
def test_the_keyboard_does_it_all(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "one")
    page.keyboard.press("Alt+ArrowUp")
    assert page.evaluate("document.activeElement.className") == "assistant"
    page.keyboard.press("r")
    page.wait_for_selector("article.assistant .branch")
    page.wait_for_selector(DONE)
    page.keyboard.press("ArrowLeft")
    until(page, "document.querySelector('article.assistant .branch').innerText.trim() === '1/2'")
    page.keyboard.press("/")
    page.keyboard.press("ArrowUp")
    page.keyboard.type(" more")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.user .body').innerText === 'one more'")
    page.wait_for_selector(DONE)
    page.keyboard.press("Control+/")
    assert page.locator("#shortcuts dt").count() >= 12
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Shift+O")
    until(page, "!document.querySelector('article')")
    page.keyboard.press("Control+k")
    page.keyboard.type("ONE")
    page.wait_for_selector("#list .snippet")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(DONE)
    page.keyboard.press("Control+b")
    assert page.locator("#sidebar").is_hidden()


@pytest.mark.all
def test_conversations_are_found_renamed_moved_and_deleted(serve: Serve, open_page: Open, tmp_path: Any) -> None:
    page = open_page(serve().url)
    for text in ("about the danube", "about the alps"):
        say(page, text)
        page.click("#new-chat")
    until(page, "document.querySelectorAll('#list li').length === 2")
    page.fill("#search", "danube said")
    until(page, "document.querySelectorAll('#list li').length === 1")
    page.fill("#search", "nothing like it")
    page.wait_for_selector("#list .none")
    page.fill("#search", "")
    until(page, "document.querySelectorAll('#list li').length === 2")
    row = page.locator("#list li", has_text="danube")
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.keyboard.type("Rivers")
    page.keyboard.press("Enter")
    page.locator("#list li", has_text="Rivers").wait_for()
    with page.expect_download() as loading:
        page.click("#export")
    loading.value.save_as(tmp_path / "all.json")
    for title in ("Rivers", "alps"):
        row = page.locator("#list li", has_text=title)
        row.hover()
        row.get_by_role("button").click()
        page.get_by_role("menuitem", name="Delete").click()
        page.locator("#ask").get_by_role("button", name="Delete").click()
        row.wait_for(state="detached")
    page.set_input_files("#import-file", tmp_path / "all.json")
    page.wait_for_selector(DONE)
    assert page.locator("#list li").count() == 2
    page.locator("#list li", has_text="Rivers").click()
    until(page, "document.querySelector('article .body')?.innerText === 'about the danube'")


@pytest.mark.all
def test_what_is_deleted_while_it_is_answered_stays_away(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "slow words", wait=False)
    row = page.locator("#list li", has_text="slow")
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    page.wait_for_selector("#list .none")
    wait_for_quiet(page)
    page.reload()
    page.wait_for_selector("#list .none")
    assert page.locator("#empty").is_visible()


@pytest.mark.all
def test_settings_go_with_a_conversation(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    page.keyboard.press("Control+,")
    page.fill("#set-system", "Be brief.")
    page.fill("#set-temperature", "0.25")
    page.fill("#set-max_tokens", "99")
    page.fill("#set-stop", "END")
    page.keyboard.press("Escape")
    page.select_option("#model", "other-1b")
    say(page, "hello")
    body = server.requests[-1]
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
    assert (body["temperature"], body["max_tokens"], body["stop"], body["model"]) == (0.25, 99, ["END"], "other-1b")
    assert "top_p" not in body
    page.reload()
    page.wait_for_selector(DONE)
    page.keyboard.press("Control+,")
    assert page.input_value("#set-system") == "Be brief."
    assert page.input_value("#model") == "other-1b"


@pytest.mark.all
def test_failures_are_told_and_tried_again(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="400")
    say(page, "fail")
    assert "The answer failed: the seed is out of range" in page.inner_text("article.assistant .note")
    page.click("#new-chat")
    say(page, "break")
    assert "the model has stopped working" in page.inner_text("article.assistant .note")
    assert texts(page)[1] == "You said: br", "what had come stays"
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("article.assistant .branch")
    page.wait_for_selector(DONE)


@pytest.mark.all
def test_a_failed_turn_is_not_told(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="400")
    say(page, "one")
    say(page, "fail")
    say(page, "two")
    assert [part["content"] for part in server.requests[-1]["messages"]] == ["one", "You said: one.", "two"]


@pytest.mark.all
def test_what_is_typed_survives_a_reload(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.fill("#composer-text", "half a thought")
    page.reload()
    until(page, "document.querySelector('#composer-text').value === 'half a thought'")
    say(page, "half a thought, whole")
    page.reload()
    page.wait_for_selector(DONE)
    assert page.input_value("#composer-text") == ""


@pytest.mark.all
def test_thoughts_are_folded_away(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "think")
    assert page.locator("article.assistant .thoughts-text").is_hidden()
    page.click("article.assistant summary")
    assert page.inner_text("article.assistant .thoughts-text") == "First I think."
    assert texts(page)[1] == "You said: think."


@pytest.mark.all
def test_a_long_answer_draws_only_its_end(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.evaluate("""() => {
        window.drawn = 0;
        new MutationObserver((changes) => {
            for (const change of changes)
                for (const node of change.addedNodes) if (node.classList?.contains('block')) window.drawn += 1;
        }).observe(document.querySelector('#messages'), { childList: true, subtree: true });
    }""")
    say(page, "long")
    blocks = page.locator("article.assistant .block").count()
    assert blocks > 600
    assert page.evaluate("window.drawn") < 3 * blocks, "blocks that are whole are not drawn again"
    end = page.evaluate(
        "(node => node.scrollHeight - node.scrollTop - node.clientHeight)(document.querySelector('#scroller'))"
    )
    assert end < 5, "the page follows the answer"


def test_a_phone(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, width=375, height=700)
    say(page, "some markdown, please " + "x" * 100)
    page.locator(".katex").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    parts = "[...document.querySelectorAll('header *, #composer *, article, .foot *')]"
    assert page.evaluate(f"{parts}.filter(node => node.getBoundingClientRect().right > 376).length") == 0
    assert page.locator("#sidebar").is_hidden()
    page.click("#open-sidebar")
    page.locator("#list a").click()
    until(page, "getComputedStyle(document.querySelector('#sidebar')).visibility === 'hidden'")
    page.keyboard.press("Control+,")
    box = page.locator("#settings").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 375


@pytest.mark.all
def test_it_speaks_chinese(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, locale="zh-CN")
    assert page.inner_text("#new-chat") == "新对话"
    assert page.get_attribute("html", "lang") == "zh-CN"
    page.keyboard.press("Control+,")
    page.locator("#settings select").nth(1).select_option("en")
    page.keyboard.press("Escape")
    assert page.inner_text("#new-chat") == "New chat"
    page.reload()
    until(page, "document.querySelector('#new-chat').innerText === 'New chat'")


@pytest.mark.all
def test_dark_is_kept(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("Control+,")
    page.locator("#settings select").nth(0).select_option("dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != before
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
