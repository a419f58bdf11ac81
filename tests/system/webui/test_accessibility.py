"""axe-core finds no violation on any page, in any dialog, light or dark, on a desktop or a phone."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.drawn_pictures import draw, ready

RUN = """async () => (await window.axe.run(document, { resultTypes: ['violations'] })).violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(node => `${node.target} ${node.failureSummary}`).join('; ')}`)"""
TEXT = """x

| Model | Context |
|---|---:|
| small | 8,192 tokens |

- [x] one
- [ ] two

```
plain
```

مرحبا بكم

end"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    spec = find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe-core comes with axe-playwright-python (the extra `browser`), which is not installed")
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")


def check(page: Any, state: str) -> None:
    found = page.evaluate(RUN)
    assert found == [], state


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height", "touch"), [(1280, 800, False), (390, 844, True)])
def test_axe_finds_nothing(
    serve: Serve, open_page: Open, axe: str, scheme: str, width: int, height: int, touch: bool
) -> None:
    page = open_page(serve().url, width=width, height=height, touch=touch, expected="400")
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(axe)
    check(page, "empty chat")
    page.evaluate("document.querySelector('#send').ariaLabel = null")
    page.evaluate("document.querySelector('#send').title = ''")
    assert [each.split(":")[0] for each in page.evaluate(RUN)] == ["button-name"], "it can fail"
    page.evaluate("document.querySelector('#send').ariaLabel = 'Send'")

    def ask(text: str) -> None:
        page.fill("#composer-text", text)
        page.click("#send")
        page.wait_for_selector("article.assistant:last-child:not(.live)")

    ask("some markdown, please")
    page.locator("pre .hljs-keyword").first.wait_for()
    page.locator(".katex").first.wait_for()
    ask("think")
    ask(TEXT)
    ask("fail")
    page.evaluate("document.querySelectorAll('details').forEach(node => { node.open = true; })")
    check(page, "conversation")
    for button, dialog in (("#open-settings", "#settings"), ("#open-shortcuts", "#shortcuts")):
        if not page.locator(button).is_visible():
            continue
        page.click(button)
        page.wait_for_selector(f"{dialog}[open]")
        check(page, dialog)
        page.keyboard.press("Escape")
    if page.locator("#open-sidebar").is_visible():
        page.click("#open-sidebar")
    page.fill("#search", "markdown")
    page.wait_for_selector("#list mark")
    check(page, "search")
    page.fill("#search", "")
    page.wait_for_selector("#list mark", state="detached")
    page.locator("#list li").hover()
    page.locator("#list li > button").click()
    check(page, "menu")
    page.get_by_role("menuitem", name="Delete").click()
    check(page, "question")
    page.keyboard.press("Escape")
    if page.locator("#shade").is_visible():
        page.locator("#close-sidebar").click()
    page.click("#to-complete")
    page.fill("#complete-text", "text")
    check(page, "complete")


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_a_key_is_asked_for(serve: Serve, open_page: Open, axe: str, scheme: str) -> None:
    page = open_page(serve(key="secret").url, expected="401", wait=False)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.wait_for_selector("#ask[open]")
    page.evaluate(axe)
    check(page, "key")


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height", "touch"), [(1280, 800, False), (390, 844, True)])
def test_axe_finds_nothing_in_bars_and_offers(
    serve: Serve, open_page: Open, axe: str, scheme: str, width: int, height: int, touch: bool
) -> None:
    server = serve(key="secret")
    server.context, server.counts = 300, True
    page = open_page(server.url, width=width, height=height, touch=touch, expected="Failed to load", wait=False)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(axe)
    page.get_by_label("API key", exact=True).wait_for()
    page.keyboard.press("Escape")
    page.locator(".bar").wait_for()
    check(page, "a missing key")
    page.locator(".bar button").click()
    page.get_by_label("API key", exact=True).fill("secret")
    page.keyboard.press("Enter")
    page.locator(".bar").wait_for(state="detached")
    page.click("#open-settings")
    page.fill("#set-system", "Be brief.")
    page.keyboard.press("Escape")
    page.fill("#composer-text", "a" * 60)
    page.click("#send")
    page.wait_for_selector("article.assistant:last-child:not(.live)")
    page.fill("#composer-text", "b" * 200)
    page.click("#send")
    page.locator("#overflow").wait_for()
    check(page, "a message without room")
    page.locator("#overflow button").first.click()
    page.locator(".cut").wait_for()
    page.wait_for_selector("article.assistant:last-child:not(.live)")
    server.close()
    page.fill("#composer-text", "c")
    page.click("#send")
    page.locator(".bar").wait_for()
    page.locator(".live .wait").wait_for()
    check(page, "a server out of reach, and messages that are left out")


@pytest.mark.all
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height", "touch"), [(1280, 800, False), (390, 844, True)])
def test_axe_finds_nothing_around_pictures(
    serve: Serve, open_page: Open, axe: str, scheme: str, width: int, height: int, touch: bool, tmp_path: Path
) -> None:
    files = [draw(tmp_path / "cat.png", 320, 240), draw(tmp_path / "tall.png", 100, 400)]
    page = open_page(serve(vision=True).url, width=width, height=height, touch=touch)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.evaluate(axe)
    page.set_input_files("#image-file", files)
    ready(page, 2)
    check(page, "pictures before they are sent")
    page.click("#send")
    page.wait_for_selector("article.assistant:last-child:not(.live)")
    check(page, "pictures in the conversation")
    page.locator(".picture").first.click()
    page.wait_for_selector("#viewer[open]")
    check(page, "a picture, enlarged")
