"""Saving when requests are lost, cross each other, or come late: nothing twice, and nothing that was deleted."""

import time
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, texts, until
from system.webui.traffic import wait_for_quiet

TEXT = "document.querySelector('#complete-text').value"
BODIES = "[...document.querySelectorAll('article .body')].map(node => node.textContent.trim())"
CONVERSATIONS = "**/api/ui/conversations**"


class HeldRequests:
    """Requests of a method that wait until the test sends them."""

    def __init__(self, page: Any, method: str) -> None:
        self.routes: list[Any] = []
        self.page, self.holds = page, True

        def take(route: Any) -> None:
            if route.request.method == method and self.holds:
                self.routes.append(route)
            else:
                route.fallback()

        page.route(CONVERSATIONS, take)

    def next(self) -> Any:
        """The next one, as soon as it is there."""
        end = time.monotonic() + 60
        while not self.routes:
            assert time.monotonic() < end, "no such request came"
            self.page.wait_for_timeout(10)
        return self.routes.pop(0)


def ask(page: Any, text: str) -> None:
    """Send a message."""
    page.fill("#composer-text", text)
    page.press("#composer-text", "Enter")


def delete(page: Any, title: str) -> None:
    """Delete a conversation in the list."""
    row = page.locator("#list li", has_text=title)
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()


def set_tokens(page: Any, max_tokens: str) -> None:
    """A setting, which is saved at once."""
    page.keyboard.press("Control+,")
    page.fill("#set-max_tokens", max_tokens)
    page.keyboard.press("Escape")


@pytest.mark.all
def test_a_first_save_whose_answer_is_lost_is_not_made_twice(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="Failed to load resource")
    lost = HeldRequests(page, "POST")
    ask(page, "hello")
    route = lost.next()
    route.fetch()
    lost.holds = False
    route.abort()
    page.wait_for_selector(DONE)
    say(page, "again")
    wait_for_quiet(page)
    page.reload()
    page.wait_for_selector(DONE)
    until(page, "document.querySelectorAll('#list li').length === 1")
    assert texts(page) == ["hello", "You said: hello.", "again", "You said: again."]


@pytest.mark.all
def test_a_text_that_is_reloaded_while_it_is_first_kept_is_kept_once(serve: Serve, open_page: Open) -> None:
    page = open_page(f"{serve().url}#/complete", expected="409")
    lost = HeldRequests(page, "POST")
    page.fill("#complete-text", "Once upon")
    lost.next().fetch()
    page.unroute(CONVERSATIONS)
    page.reload()
    until(page, "/^#.complete.[0-9a-f]{32}$/.test(location.hash)")
    page.fill("#complete-text", "Once upon a time")
    page.keyboard.press("Tab")
    wait_for_quiet(page)
    page.reload()
    until(page, f"{TEXT} === 'Once upon a time'")
    until(page, "document.querySelectorAll('#list li').length === 1")


@pytest.mark.all
def test_a_save_under_way_does_not_bring_back_what_is_deleted(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="404")
    say(page, "hello")
    wait_for_quiet(page)
    changes, deletions = HeldRequests(page, "PATCH"), HeldRequests(page, "DELETE")
    set_tokens(page, "5")
    change = changes.next()
    delete(page, "hello")
    deletion = deletions.next()
    gone = deletion.fetch()
    change.continue_()
    page.wait_for_timeout(100)  # in which it is answered with 404, before the page knows of the deletion's end
    deletion.fulfill(response=gone)
    page.wait_for_selector("#list .none")
    wait_for_quiet(page)
    page.reload()
    page.wait_for_selector("#list .none")


@pytest.mark.all
def test_what_could_not_be_deleted_goes_on(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="Failed to load resource")
    say(page, "hello")
    deletions = HeldRequests(page, "DELETE")
    delete(page, "hello")
    deletions.next().abort()
    page.locator(".notice", has_text="Could not delete: The server cannot be reached").wait_for()
    say(page, "still here")
    wait_for_quiet(page)
    page.reload()
    page.wait_for_selector(DONE)
    assert texts(page)[-1] == "You said: still here."


@pytest.mark.all
def test_an_answer_that_comes_does_not_go_back_for_another_tabs_change(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="409")
    say(page, "slow words", wait=False)
    until(page, "location.hash.startsWith('#/c/')")
    other = open_page(page.url, beside=page)
    row = other.locator("#list li", has_text="slow")
    row.hover()
    row.get_by_role("button").click()
    other.get_by_role("menuitem", name="Rename").click()
    other.locator("#list .rename").fill("Other")
    other.keyboard.press("Enter")
    other.get_by_role("link", name="Other").wait_for()
    page.wait_for_timeout(300)  # words that are not kept yet
    set_tokens(page, "5")
    until(page, "document.title.startsWith('Other')")
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    words = texts(page)[1].split()
    assert words == [f"word{index}" for index in range(len(words))]


@pytest.mark.all
def test_an_edit_waits_while_another_question_is_answered(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "first")
    page.locator("article.user").get_by_role("button", name="Edit").click()
    page.locator(".editor textarea").fill("other")
    say(page, "slow words", wait=False)
    page.locator(".editor").get_by_role("button", name="Send").click()
    assert page.locator(".editor textarea").input_value() == "other"
    page.click("#stop")
    page.wait_for_selector(DONE)
    page.locator(".editor").get_by_role("button", name="Send").click()
    until(page, "document.querySelectorAll('article').length === 2")
    page.wait_for_selector(DONE)
    assert texts(page) == ["other", "You said: other."]


@pytest.mark.all
def test_a_short_answer_goes_on_where_it_was_cut(serve: Serve, open_page: Open) -> None:
    server = serve()
    question = {"id": "a" * 32, "role": "user", "content": "Where?"}
    answer = {"id": "b" * 32, "parent": "a" * 32, "role": "assistant", "content": "end", "finish": "length"}
    page = open_page(server.url)
    page.request.post(f"{server.url}api/ui/conversations", data={"id": "c" * 32, "messages": [question, answer]})
    page.goto(f"{server.url}#/c/{'c' * 32}")
    page.get_by_role("button", name="Continue").click()
    until(page, "document.querySelector('article.assistant .body').innerText === 'end and more.'")
    assert [each["content"] for each in server.requests[-1]["messages"]] == ["Where?", "end"]


@pytest.mark.all
def test_a_text_deleted_beside_the_chat_leaves_the_chat(serve: Serve, open_page: Open) -> None:
    page = open_page(f"{serve().url}#/complete")
    page.fill("#complete-text", "a text")
    until(page, "document.querySelectorAll('#list li').length === 1")
    page.click("#to-chat")
    say(page, "hello")
    place = page.url
    delete(page, "a text")
    until(page, "document.querySelectorAll('#list li').length === 1")
    assert page.url == place
    assert page.locator("#chat-page").is_visible()


@pytest.mark.all
def test_a_tab_stays_on_its_branch_where_another_begins_one(serve: Serve, open_page: Open) -> None:
    server = serve()
    first = open_page(server.url, expected="409")
    say(first, "hello")
    second = open_page(first.url, beside=first, expected="409")
    second.wait_for_selector(DONE)
    say(first, "more")
    until(second, f"{BODIES}.length === 4")
    second.wait_for_selector(DONE)
    second.locator("article").first.get_by_role("button", name="Edit").click()
    second.get_by_role("textbox", name="Edit message").fill("other")
    second.keyboard.press("Enter")
    until(second, f"{BODIES}.join() === 'other,You said: other.'")
    first.locator(".notice", has_text="also continued in another tab").wait_for()
    assert first.evaluate(f"{BODIES}.join()") == "hello,You said: hello.,more,You said: more."
    say(first, "and on")
    until(first, f"{BODIES}.slice(2).join() === 'more,You said: more.,and on,You said: and on.'")
    assert first.locator(".branch").first.inner_text() == "1/2"
    first.locator(".branch").first.get_by_role("button", name="Next version").click()
    until(first, f"{BODIES}.join() === 'other,You said: other.'")


@pytest.mark.all
def test_two_tabs_keep_both_of_their_texts(serve: Serve, open_page: Open) -> None:
    first = open_page(f"{serve().url}#/complete", expected="409")
    first.fill("#complete-text", "Once")
    until(first, "/^#.complete.[0-9a-f]{32}$/.test(location.hash)")
    second = open_page(first.url, beside=first)
    until(second, f"{TEXT} === 'Once'")
    second.fill("#complete-text", "Once upon")
    second.keyboard.press("Tab")
    wait_for_quiet(second)
    first.fill("#complete-text", "Once again")
    first.keyboard.press("Tab")
    first.locator(".notice", has_text="saved as a separate text").wait_for()
    until(first, "document.querySelectorAll('#list li').length === 2")
    assert first.url != second.url
    for page, text in ((first, "Once again"), (second, "Once upon")):
        wait_for_quiet(page)
        page.reload()
        until(page, f"{TEXT} === '{text}'")


@pytest.mark.all
def test_who_comes_back_to_a_tab_sees_the_newest_text(serve: Serve, open_page: Open) -> None:
    first = open_page(f"{serve().url}#/complete")
    first.fill("#complete-text", "Once")
    until(first, "/^#.complete.[0-9a-f]{32}$/.test(location.hash)")
    wait_for_quiet(first)
    second = open_page(first.url, beside=first)
    until(second, f"{TEXT} === 'Once'")
    second.fill("#complete-text", "Once upon")
    second.keyboard.press("Tab")
    wait_for_quiet(second)
    first.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    until(first, f"{TEXT} === 'Once upon'")


@pytest.mark.all
def test_odd_figures_of_an_imported_file_hide_nothing(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    odd = {"prompt_tokens": "many", "completion_tokens": "<b>", "first_token_s": None, "tokens_per_s": True}
    answer = {"id": "b" * 32, "role": "assistant", "content": "Hello", "finish": "__proto__", "stats": odd}
    text = {"id": "a" * 32, "role": "user", "content": "Once", "stats": {}}
    for name, kind, message in (("c", "chat", answer), ("d", "completion", text)):
        data = {"id": name * 32, "kind": kind, "messages": [message]}
        page.request.post(f"{server.url}api/ui/conversations", data=data)
    page.goto(f"{server.url}#/c/{'c' * 32}")
    until(page, "document.querySelector('article .body')?.innerText === 'Hello'")
    page.goto(f"{server.url}#/complete/{'d' * 32}")
    until(page, f"{TEXT} === 'Once'")
