"""Search in the web chat: the snippet, the way to the match, its highlight, Enter and Esc."""

from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, until

HIGHLIGHTED = "[...(CSS.highlights.get('search') ?? [])].map(range => range.toString())"
IN_VIEW = """(() => {
    const box = [...CSS.highlights.get('search')][0].getBoundingClientRect();
    const frame = document.querySelector('#scroller').getBoundingClientRect();
    return box.height > 0 && box.top >= frame.top && box.bottom <= frame.bottom;
})()"""


def search(page: Any, text: str) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type(text)


def test_enter_opens_the_match_and_highlights_it(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "about the Danube")
    say(page, "long")
    say(page, "something else")
    page.click("#new-chat")
    say(page, "no match")
    search(page, "danube THE")
    page.keyboard.press("Enter")  # before the list has come
    until(page, "document.activeElement?.localName === 'article'")
    assert page.locator("#list li").count() == 1
    assert page.inner_text("#list .snippet") == "about the Danube"
    assert page.locator("#list .snippet mark").all_inner_texts() == ["the", "Danube"]
    assert page.evaluate("document.activeElement.querySelector('.body').innerText") == "about the Danube"
    assert {each.lower() for each in page.evaluate(HIGHLIGHTED)} == {"the", "danube"}
    until(page, IN_VIEW)
    until(page, "/^#.c.[0-9a-f]{32}$/.test(location.hash)")
    page.focus("#composer-text")
    page.keyboard.press("Escape")
    assert page.input_value("#search") == ""
    assert page.evaluate(HIGHLIGHTED) == []
    until(page, "document.querySelectorAll('#list li').length === 2")
    assert page.evaluate("document.activeElement.id") == "composer-text"


@pytest.mark.all
def test_the_page_scrolls_to_the_place_of_the_snippet(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "the words\n\n" + "filler, one of a hundred\n\n" * 100 + "the walrus\n\n" + "filler\n\n" * 100)
    page.click("#new-chat")
    search(page, "the walrus")
    page.keyboard.press("Enter")
    until(page, "document.activeElement?.localName === 'article'")
    place = """(() => {
        const range = [...CSS.highlights.get('search')].find(range => range.toString() === 'walrus'
            && range.startContainer.parentElement.closest('article') === document.activeElement);
        const box = range.getBoundingClientRect();
        const frame = document.querySelector('#scroller').getBoundingClientRect();
        return box.top >= frame.top && box.bottom <= frame.bottom;
    })()"""
    until(page, place)


@pytest.mark.all
def test_signs_are_searched_for_as_they_are(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    for query in (r"smollm2-135m (a|b)* [c] {d} $e ^f \g h? i+ j/k .l", "-", "é ß", "😀"):
        page.click("#new-chat")
        say(page, f"here: {query} there")
        page.fill("#search", "")
        page.fill("#search", query)
        page.press("#search", "Enter")
        until(page, "document.activeElement?.localName === 'article'")
        found = page.evaluate(HIGHLIGHTED)
        assert [word for word in query.split() if word not in found] == [], query
        page.keyboard.press("Control+k")
        page.keyboard.press("Escape")


@pytest.mark.all
def test_a_match_on_another_branch_or_in_a_fold_is_shown(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "line\n" * 60 + "the hidden walrus")
    page.locator("article.user").hover()
    page.locator("article.user").get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit message").fill("another question")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.user .body').innerText === 'another question'")
    page.wait_for_selector(DONE)
    search(page, "hidden walrus")
    page.wait_for_selector("#list .snippet mark")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.user .body').innerText.includes('walrus')")
    until(page, IN_VIEW)
    assert page.locator("article.user .body.folded").count() == 0
    page.fill("#search", "another")
    page.press("#search", "Enter")
    until(page, "document.querySelector('article.user .body').innerText === 'another question'")


@pytest.mark.all
def test_a_match_in_a_text_is_selected_and_one_across_elements_is_highlighted(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "some markdown, please")
    page.locator(".katex").first.wait_for()
    search(page, "and reflection")
    page.keyboard.press("Enter")
    until(page, "document.activeElement?.localName === 'article'")
    page.fill("#search", "")
    page.fill("#search", "refraction")
    until(page, f"{HIGHLIGHTED}.includes('refraction')")
    page.click("#to-complete")
    page.fill("#complete-text", "x\n" * 200 + "the walrus and the carpenter\n" + "y\n" * 200)
    until(page, "/^#.complete.[0-9a-f]{32}$/.test(location.hash)")
    search(page, "carpenter")
    page.wait_for_selector("#list .of-text")
    page.keyboard.press("Enter")
    selected = "(area => area.value.slice(area.selectionStart, area.selectionEnd))(document.activeElement)"
    until(page, f"document.activeElement.id === 'complete-text' && {selected} === 'carpenter'")
