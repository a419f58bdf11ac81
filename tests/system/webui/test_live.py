"""Answers that the server writes as jobs: they outlive the page, and every tab and device follows and stops them."""

import time
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, texts, until
from system.webui.traffic import wait_for_quiet

LIVE = "article.assistant:last-child.live"
WORDS = "document.querySelector('article.assistant:last-child .body').innerText.trim().split(' ')"
NOTE = "article.assistant:last-child .note"


def stored(page: Any, url: str, place: str) -> dict[str, Any]:
    """The conversation as the server has it."""
    found: dict[str, Any] = page.request.get(f"{url}api/ui/conversations/{place.rpartition('/')[2]}").json()
    return found


def check_words(words: list[str]) -> None:
    """No word of a "slow" answer is missing or twice."""
    assert words == [f"word{index}" for index in range(len(words))]


def test_an_answer_goes_on_through_a_reload(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 5")
    page.reload()
    page.wait_for_selector(LIVE)
    until(page, f"{WORDS}.length > 20")
    assert page.locator("#stop").is_visible()
    page.click("#stop")
    page.wait_for_selector(DONE)
    assert page.inner_text(NOTE).split() == ["Stopped", "Continue"]
    words = page.evaluate(WORDS)
    check_words(words)
    answer = stored(page, server.url, page.url)["messages"][1]
    assert (answer["content"].split(), answer["finish"], answer["model"]) == (words, "cancelled", "pretend-135m")
    assert len(server.requests) == 1, "nothing is generated twice"


@pytest.mark.all
def test_an_answer_ends_after_every_page_has_gone(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "late to end", wait=False)
    until(page, "location.hash.startsWith('#/c/')")
    place = page.url
    until(page, "document.querySelector('.live .wait').innerText !== ''")
    page.goto("about:blank")
    found = stored(page, server.url, place)
    assert found["answering"] == found["messages"][1]["id"]
    server.go.set()
    end = time.monotonic() + 60
    while "answering" in (found := stored(page, server.url, place)):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert [each["content"] for each in found["messages"]] == ["late to end", "You said: late to end."]
    assert found["messages"][1]["finish"] == "stop"
    page.goto(place)
    page.wait_for_selector(DONE)
    assert texts(page) == ["late to end", "You said: late to end."]


def test_a_second_device_follows_an_answer_and_stops_it(serve: Serve, open_page: Open) -> None:
    server = serve()
    first = open_page(server.url)
    say(first, "hello")
    second = open_page(first.url)
    second.wait_for_selector(DONE)
    say(first, "slow words", wait=False)
    second.wait_for_selector(LIVE)
    assert texts(second)[2] == "slow words", "the question comes along"
    until(second, f"{WORDS}.length > 8")
    assert second.locator("#send").is_hidden(), "no second answer is asked for"
    second.click("#stop")
    for page in (first, second):
        page.wait_for_selector(DONE)
        assert page.inner_text(NOTE).split() == ["Stopped", "Continue"]
    assert first.evaluate(WORDS) == second.evaluate(WORDS)
    check_words(first.evaluate(WORDS))
    second.get_by_role("button", name="Continue").click()
    until(first, f"{WORDS}.at(-1) === 'more.'")
    for page in (first, second):
        page.wait_for_selector(DONE)
        wait_for_quiet(page)
    assert texts(first) == texts(second)
    assert len(server.requests) == 3
    say(second, "bye")
    until(first, "document.querySelectorAll('article').length === 6")


@pytest.mark.all
def test_a_tab_that_was_hidden_shows_what_came(serve: Serve, open_page: Open) -> None:
    """Hidden tabs hold no connection: browsers allow few connections."""
    page = open_page(serve().url)
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 3")
    hide = """(state) => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
        document.dispatchEvent(new Event('visibilitychange')); }"""
    page.evaluate(hide, "hidden")
    page.wait_for_timeout(150)
    before = len(page.evaluate(WORDS))
    page.wait_for_timeout(500)
    assert len(page.evaluate(WORDS)) == before
    page.evaluate(hide, "visible")
    until(page, f"{WORDS}.length > {before + 10}")
    check_words(page.evaluate(WORDS))
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)


@pytest.mark.all
def test_edits_beside_an_answer_that_comes_are_not_lost(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 3")
    row = page.locator("#list li", has_text="slow")
    row.hover()
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.locator("#list .rename").fill("Another")
    page.keyboard.press("Enter")
    until(page, "document.title.startsWith('Another')")
    other = open_page(page.url)
    until(other, f"{WORDS}.length > 10")
    other.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    found = stored(page, server.url, page.url)
    assert found["title"] == "Another"
    check_words(found["messages"][1]["content"].split())


@pytest.mark.all
def test_a_deleted_question_ends_its_answer(serve: Serve, open_page: Open) -> None:
    server = serve()
    first = open_page(server.url)
    say(first, "hello")
    second = open_page(first.url, expected="409")
    second.wait_for_selector(DONE)
    say(first, "slow words", wait=False)
    second.wait_for_selector(LIVE)
    place = first.url.rpartition("/")[2]
    found = stored(first, server.url, place)
    change = {"version": found["version"], "remove": [found["messages"][2]["id"]]}
    assert first.request.patch(f"{server.url}api/ui/conversations/{place}", data=change).ok
    for page in (first, second):
        until(page, "document.querySelectorAll('article').length === 2 && !document.querySelector('.live')")
        assert page.locator("#send").is_visible()
    assert server.cut == 1
    assert len(stored(first, server.url, place)["messages"]) == 2


BAR = "This conversation was deleted elsewhere"


def delete_elsewhere(page: Any, url: str) -> str:
    """Delete the conversation that a page shows, as another device would; its path in the API."""
    place = f"{url}api/ui/conversations/{page.url.rpartition('/')[2]}"
    assert page.request.delete(place).ok
    return place


def test_a_chat_deleted_elsewhere_is_not_created_again_unasked(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="404")
    say(page, "hello")
    place = delete_elsewhere(page, server.url)
    bar = page.locator(".bar", has_text=BAR)
    bar.wait_for()
    page.wait_for_selector("#list .none")
    page.fill("#composer-text", "more")
    page.press("#composer-text", "Enter")
    page.locator(".notice", has_text="Not sent").wait_for()
    assert page.input_value("#composer-text") == "more", "what was typed stays"
    assert page.request.get(f"{server.url}api/ui/conversations").json()["total"] == 0
    assert bar.is_visible()
    bar.get_by_role("button", name="Keep a copy as a new chat").click()
    bar.wait_for(state="detached")
    page.locator("#list li").wait_for()
    page.press("#composer-text", "Enter")
    page.wait_for_selector(f"{DONE}:nth-child(4)")
    wait_for_quiet(page)
    assert texts(page) == ["hello", "You said: hello.", "more", "You said: more."]
    assert page.url.rpartition("/")[2] != place.rpartition("/")[2]
    assert len(stored(page, server.url, page.url)["messages"]) == 4


def test_an_answer_whose_chat_is_deleted_elsewhere_says_so(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="404", locale="zh-CN")
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 3")
    delete_elsewhere(page, server.url)
    bar = page.locator(".bar", has_text="这个对话已在别处删除")
    bar.wait_for()
    page.wait_for_selector(DONE)
    assert "服务器" not in page.inner_text(NOTE), "the server was not stopped"
    page.get_by_role("button", name="继续").click()
    page.locator(".notice", has_text="未发送").wait_for()
    assert page.request.get(f"{server.url}api/ui/conversations").json()["total"] == 0
    bar.get_by_role("button").click()
    bar.wait_for(state="detached")
    page.locator("#list li").wait_for()
    check_words(stored(page, server.url, page.url)["messages"][1]["content"].split())


@pytest.mark.all
def test_a_message_that_crosses_a_deletion_is_not_lost(serve: Serve, open_page: Open) -> None:
    """The page hears of the deletion by its own save."""
    server = serve()
    page = open_page(server.url, expected="404")
    say(page, "hello")
    page.route("**/events", lambda route: route.abort())
    hide = """(state) => { Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
        document.dispatchEvent(new Event('visibilitychange')); }"""
    page.evaluate(hide, "hidden")
    delete_elsewhere(page, server.url)
    page.fill("#composer-text", "more")
    page.press("#composer-text", "Enter")
    bar = page.locator(".bar", has_text=BAR)
    bar.wait_for()
    until(page, "!document.querySelector('.live')")
    assert texts(page) == ["hello", "You said: hello.", "more"]
    assert page.request.get(f"{server.url}api/ui/conversations").json()["total"] == 0
    bar.get_by_role("button").click()
    bar.wait_for(state="detached")
    page.locator("#list li").wait_for()
    assert len(stored(page, server.url, page.url)["messages"]) == 3


@pytest.mark.all
def test_a_question_behind_another_tabs_answer_says_what_it_waits_for(serve: Serve, open_page: Open) -> None:
    server = serve()
    first = open_page(server.url, expected="409")
    say(first, "hello")
    second = open_page(first.url, beside=first, expected="409")
    second.wait_for_selector(DONE)
    held: list[Any] = []
    holds = True  # so that the other question comes first
    second.route("**/api/ui/conversations/*", lambda route: held.append(route) if holds else route.continue_())
    second.fill("#composer-text", "me too")
    second.press("#composer-text", "Enter")
    say(first, "slow words", wait=False)
    until(first, f"{WORDS}.length > 3")
    holds = False
    for route in held:
        route.continue_()
    note = second.get_by_text("Waits for the answer in another tab")
    note.wait_for()
    first.click("#stop")
    note.wait_for(state="detached")
    second.locator("article .body", has_text="You said: me too.").wait_for()


@pytest.mark.all
def test_a_server_that_was_killed_leaves_what_had_come(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="Failed to load resource")
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 60")  # more than is stored every 2.5 s
    server.close()
    page.locator(".bar", has_text="Server unreachable, retrying…").wait_for()
    assert len(page.evaluate(WORDS)) > 60, "the chat stays readable"
    serve(port=server.port)
    page.wait_for_selector(DONE)
    assert page.locator(".bar").count() == 0
    assert page.inner_text(NOTE).split("\n")[0] == "Interrupted: the server was stopped"
    check_words(page.evaluate(WORDS))
    page.get_by_role("button", name="Continue").click()
    until(page, f"{WORDS}.at(-1) === 'more.'")


@pytest.mark.all
def test_a_connection_that_breaks_goes_on_where_it_was(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="ERR_")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.headers.get("last-event-id", "")))
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 5")
    for connection in list(server.connections):
        server.call(connection.transport.abort)
    until(page, f"{WORDS}.length > 25")
    check_words(page.evaluate(WORDS))
    assert any(sent), "only the rest was asked for"
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)


@pytest.mark.all
def test_figures_of_a_stopped_answer_are_right(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "hello")
    say(page, "slow words", wait=False)
    until(page, f"{WORDS}.length > 10")
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    words = len(page.evaluate(WORDS))
    used = int(page.inner_text("#context").split(" ")[0])
    assert 64 + words <= used <= 64 + words + 1
    assert page.inner_text("article.assistant:last-child .stats").startswith("pretend-135m"), "the model is named"


@pytest.mark.all
def test_an_answer_that_cannot_be_stored_says_so(serve: Serve, open_page: Open, monkeypatch: Any) -> None:
    from sporelm.errors import RequestError

    server = serve()
    page = open_page(server.url)
    say(page, "late words", wait=False)
    until(page, "document.querySelector('.live .wait').innerText !== ''")  # the server has stored its place

    def full(*args: Any, **options: Any) -> None:
        raise RequestError("the conversation cannot be written: No space left on device; see the log")

    monkeypatch.setattr(server.jobs.store, "update", full)
    server.go.set()
    page.wait_for_selector(DONE)
    assert "the server could not save it" in page.inner_text(NOTE)
    assert texts(page)[1] == "You said: late words."
