"""How the page looks and moves: contrast, names, sizes, what shifts while an answer comes, what a load takes."""

import re
from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.drawn_pictures import draw, ready
from system.webui.test_web_chat import DONE, say, texts, until

# Every text's contrast with what lies behind it, and every field's edge, by WCAG 2.1: [ratio, needed, what].
CONTRAST = """() => {
    const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].map((part, at) => at < 3 ? part : part / 255);
    };
    const over = (top, under) => [0, 1, 2].map(at => top[at] * top[3] + under[at] * (1 - top[3])).concat(1);
    const behind = (node) => {
        if (!node) return rgba('#fff');
        const own = rgba(getComputedStyle(node).backgroundColor);
        return own[3] === 1 ? own : over(own, behind(node.parentElement));
    };
    const light = (colour) => colour.slice(0, 3).map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const ratio = (one, two) => {
        const [more, less] = [light(one), light(two)].sort((a, b) => b - a);
        return (more + 0.05) / (less + 0.05);
    };
    const visible = (node) => node.checkVisibility({ opacityProperty: true, visibilityProperty: true })
        && node.getBoundingClientRect().width > 1;
    const found = [];
    for (const node of document.querySelectorAll('body *')) {
        if (!visible(node) || node.closest('.katex, :disabled, option, meter')) continue;
        const style = getComputedStyle(node);
        const has = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
        const under = behind(node);
        const name = `${node.tagName} ${node.className} ${node.textContent.trim().slice(0, 30)}`;
        if (has || node.value) found.push([ratio(over(rgba(style.color), under), under), 4.5, name]);
        const against = (colour) => ratio(over(rgba(colour), under), under);
        if (node.localName === 'svg') found.push([against(style.stroke), 3, 'picture in ' + name]);
        if (node.placeholder) found.push([against(getComputedStyle(node, '::placeholder').color), 4.5, 'in ' + name]);
        const edge = rgba(style.borderTopColor);
        if (node.matches('input, select, dialog textarea, .field') && parseFloat(style.borderTopWidth) > 0 && edge[3])
            found.push([ratio(edge, behind(node.parentElement)), 3, 'edge of ' + node.id]);
    }
    return found.filter(([ratio, needed]) => ratio < needed);
}"""

NAMELESS = """() => [...document.querySelectorAll(
    'button, input:not([hidden]), select, textarea, a, summary, dialog[open], nav, '
    + '[role=log], [role=menu], [role=group]')].filter(node => node.checkVisibility())
    .filter(node => !(node.ariaLabel || node.textContent.trim() || node.labels?.[0]?.innerText.trim()
        || document.getElementById(node.getAttribute('aria-labelledby'))?.innerText.trim()))
    .map(node => node.outerHTML.slice(0, 120))"""

SMALL = """() => [...document.querySelectorAll('button, select, #list a, summary')]
    .filter(node => node.checkVisibility({ visibilityProperty: true }))
    .map(node => [node.getBoundingClientRect(), node.outerHTML.slice(0, 80)])
    .filter(([box]) => box.width < 24 || box.height < 24).map(([, html]) => html)"""


def check(page: Any) -> None:
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(SMALL) == []


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_and_has_a_name(serve: Serve, open_page: Open, scheme: str) -> None:
    page = open_page(serve().url, expected="400")
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    check(page)
    page.evaluate("document.querySelector('#empty p').style.color = 'light-dark(#8a8a8a, #666)'")
    assert [what for _, _, what in page.evaluate(CONTRAST)] == ["P muted You are chatting with pretend-"], "it can fail"
    say(page, "some markdown, please")
    page.locator("pre .hljs-keyword").first.wait_for()
    say(page, "think")
    say(page, "fail")
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    check(page)
    for keys, dialog in (("Control+,", "#settings"), ("Control+/", "#shortcuts")):
        page.keyboard.press(keys)
        page.locator(dialog).wait_for()
        check(page)
        page.keyboard.press("Escape")
    page.locator("#list li").hover()
    page.locator("#list li > button").click()
    check(page)
    page.get_by_role("menuitem", name="Delete").click()
    check(page)
    page.keyboard.press("Escape")
    page.click("#to-complete")
    page.fill("#complete-text", "text")
    check(page)
    assert page.locator("article").nth(1).get_attribute("aria-label") == "Assistant, message 2 of 6"


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height", "touch"), [(1280, 800, False), (360, 640, True)])
def test_pictures_have_names_and_buttons_of_a_fingers_size(
    serve: Serve, open_page: Open, scheme: str, width: int, height: int, touch: bool, tmp_path: Path
) -> None:
    page = open_page(serve(vision=True).url, width=width, height=height, touch=touch)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_input_files("#image-file", [draw(tmp_path / f"{name}.png", 320, 240) for name in ("one", "two", "three")])
    ready(page, 3)
    check(page)
    page.click("#send")
    page.wait_for_selector(DONE)
    check(page)
    page.locator(".picture").first.click()
    page.locator("#viewer").wait_for()
    check(page)
    if touch:
        small = page.evaluate("""[...document.querySelectorAll('#viewer button, #composer button, .picture')]
            .filter(node => node.checkVisibility()).map(node => node.getBoundingClientRect())
            .filter(({ width, height }) => Math.min(width, height) < 43).length""")
        assert small == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.all
def test_a_screen_reader_is_told(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "hello")
    until(page, "document.querySelector('#live').innerText === 'Answer: You said: hello.'")


@pytest.mark.all
def test_the_focus_goes_from_the_list_to_the_composer(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "hello")
    seen = ["composer-text"]
    while seen[0] != "skip":
        page.keyboard.press("Shift+Tab")
        name = "(node => node.id || node.dataset.act || node.className || node.localName)(document.activeElement)"
        seen.insert(0, page.evaluate(name))
        assert len(seen) < 30, seen
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'"), seen
    order = ["skip", "close-sidebar", "new-chat", "search", "model", "to-chat", "open-settings", "copy", "copy"]
    assert [each for each in seen if each in order] == order, seen
    page.keyboard.press("Control+,")
    page.wait_for_selector("#settings[open]")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.className") == "skip", "the focus comes back"


@pytest.mark.all
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_nothing_moves_when_an_answer_ends(serve: Serve, open_page: Open, width: int, height: int) -> None:
    page = open_page(serve().url, width=width, height=height)
    say(page, "hello")
    page.evaluate("""() => {
        window.places = [];
        const look = () => {
            const node = document.querySelector('article.assistant:last-child .foot .stats');
            if (node) window.places.push(Math.round(node.getBoundingClientRect().left));
            window.looking = requestAnimationFrame(look);
        };
        look();
    }""")
    say(page, "slow " + "and" * 3, wait=False)
    until(page, "document.querySelector('article.assistant:last-child .body').innerText.includes('word5')")
    page.evaluate("window.places.length = 0")
    until(page, "window.places.length > 10")
    page.keyboard.press("Escape")
    page.wait_for_selector(DONE)
    until(page, "window.places.length > 20")
    assert len(set(page.evaluate("window.places"))) == 1, "the figures below stay in place"


@pytest.mark.all
def test_a_reader_of_text_above_is_not_moved(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "long")
    say(page, "slow", wait=False)
    until(page, "document.querySelector('article.assistant:last-child .body').innerText.includes('word3')")
    page.locator("#scroller").hover()
    page.mouse.wheel(0, -60)  # a little, within the last lines
    page.wait_for_timeout(200)
    place = page.evaluate("document.querySelector('#scroller').scrollTop")
    until(page, "document.querySelector('article.assistant:last-child .body').innerText.includes('word30')")
    assert page.evaluate("document.querySelector('#scroller').scrollTop") == place
    page.click("#to-end")
    page.wait_for_timeout(200)
    at_end = "(node => node.scrollHeight - node.scrollTop - node.clientHeight < 5)(document.querySelector('#scroller'))"
    assert page.evaluate(at_end), "and follows again when it is asked to"
    page.keyboard.press("Escape")


@pytest.mark.all
def test_a_phone_in_the_hand(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, width=390, height=844, touch=True)
    page.fill("#composer-text", "hello")
    page.press("#composer-text", "Enter")
    assert page.input_value("#composer-text") == "hello\n", "its keyboard has no other way to a new line"
    page.tap("#send")
    page.wait_for_selector(DONE)
    assert texts(page) == ["hello", "You said: hello."]
    assert page.evaluate("document.activeElement.id") != "composer-text", "its keyboard stays away"
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    small = page.evaluate("""[...document.querySelectorAll('button')].filter(node => node.checkVisibility())
        .map(node => [node.getBoundingClientRect().height, node.outerHTML.slice(0, 60)])
        .filter(([high]) => high < 34)""")
    assert small == []


@pytest.mark.all
def test_the_first_load_is_small_and_the_second_is_one_request(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    sizes = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .filter(entry => !/api|v1/.test(entry.name)).map(entry => [entry.transferSize, entry.name])"""
    first = page.evaluate(sizes)
    assert sum(size for size, _ in first) < 120_000
    assert page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime") <= 1000
    page.reload()
    page.wait_for_selector("#model option", state="attached")
    asked = [name for size, name in page.evaluate(sizes) if size > 0]
    assert [re.sub(r"^http://[^/]+", "", name) for name in asked] == ["/"]
