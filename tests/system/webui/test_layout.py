"""How messages and the page are laid out: tables, directions, code, tasks, the composer, touch targets, wording."""

from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import say, texts, until

TABLE = """x

| Model | Parameters | Context length | Architecture | Licence | Training tokens | Support | 名称 |
|---|---:|---:|---|---|---:|---|---|
| smollm2-135m-instruct | 135 million | 8,192 tokens | Transformer decoder | Apache-2.0 | 2 trillion | some | 小模型 |
| Qwen3-0.6B | 600 million | 32,768 tokens | Grouped-query attention | Apache-2.0 | 36 trillion | many | 千问 |

end"""

# The words of cells that stand on more than one line.
BROKEN = r"""() => [...document.querySelectorAll('article.assistant :is(th, td)')].flatMap(cell => {
    const broken = [];
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        for (const word of node.data.matchAll(/\S+/g)) {
            const range = document.createRange();
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) broken.push(word[0]);
        }
    }
    return broken;
})"""

ARABIC = """مرحبا بكم

# الطقس

الدالة `weather()` تعمل و $a+b$ كذلك.

- أولا
- Sporelm

| المدينة | الحرارة |
|---|---|
| القاهرة | 31 |

An English paragraph.

- English
- item

end"""

# The least width and height of what is pressed, where it has less than 44 px.
SMALL = """() => [...document.querySelectorAll(
    'button, select, summary, input:not([type=file], [type=checkbox]), textarea, .segments a, #list a, label.tick')]
    .filter(node => node.checkVisibility({ visibilityProperty: true }))
    .map(node => [node.getBoundingClientRect(), node.outerHTML.slice(0, 90)])
    .filter(([box]) => box.width && (box.width < 43.9 || box.height < 43.9))
    .map(([box, html]) => `${box.width} x ${box.height} ${html}`)"""


def direction(page: Any, selector: str) -> str:
    return page.evaluate(f"getComputedStyle(document.querySelector('article.assistant {selector}')).direction")


@pytest.mark.all
@pytest.mark.parametrize("width", [1280, 820, 390, 320])
def test_words_in_tables_stay_whole(serve: Serve, open_page: Open, width: int) -> None:
    page = open_page(serve().url, width=width)
    say(page, TABLE)
    assert page.evaluate(BROKEN) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    scrolls = "(frame => frame.scrollWidth > frame.clientWidth)(document.querySelector('.table'))"
    assert page.evaluate(scrolls) is True, "a wide table scrolls by itself"
    page.evaluate("document.querySelector('.block table').style.overflowWrap = 'anywhere'")
    page.evaluate("document.querySelectorAll('.word').forEach(node => node.replaceWith(...node.childNodes))")
    if width < 1000:
        assert page.evaluate(BROKEN) != [], "it can fail"


@pytest.mark.all
def test_blocks_take_the_direction_of_their_text(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.fill("#composer-text", "مرحبا")
    assert page.evaluate("getComputedStyle(document.querySelector('#composer-text')).direction") == "rtl"
    say(page, ARABIC)
    page.locator(".katex").first.wait_for()
    assert page.evaluate("getComputedStyle(document.querySelector('article.user .body')).direction") == "rtl"
    page.evaluate("document.querySelector('#scroller').scrollTop = 0")
    for part in ("h1", "h1 ~ p, .block:nth-child(n+3) > p", "ul", ".table"):
        assert direction(page, part) == "rtl", part
    for part in ("code", "[data-formula]"):
        assert direction(page, part) == "ltr", part
    last = page.locator("article.assistant ul").last
    assert last.evaluate("node => getComputedStyle(node).direction") == "ltr"
    cells = [box["x"] for each in page.locator("article.assistant th").all() if (box := each.bounding_box())]
    assert cells[0] > cells[1], "the first column is on the right"
    right = "node.getBoundingClientRect().right"
    edges = f"list => [...list.children].map(node => list.getBoundingClientRect().right - {right})"
    assert all(gap > 10 for gap in page.locator("article.assistant ul").first.evaluate(edges)), "bullets on the right"
    page.locator("#list .title").first.wait_for()
    assert page.evaluate("getComputedStyle(document.querySelector('#list .title')).direction") == "rtl"
    page.locator("#list li").hover()
    page.locator("#list li > button").click()
    page.get_by_role("menuitem", name="Delete").click()
    assert page.inner_text("#ask-text").startswith("“\u2068مرحبا"), "it does not turn the English around it"


@pytest.mark.all
def test_code_without_a_language_has_no_header_and_tasks_no_bullet(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    say(page, "x\n\n```\nplain words\n```\n\n```python\nx = 1\n```\n\n- [x] one\n- [ ] two\n- three\n\nend")
    plain, coloured = page.locator(".code").all()
    above = "node => node.querySelector('code').getBoundingClientRect().top - node.getBoundingClientRect().top"
    assert plain.evaluate(above) < 20, "the text begins at the top"
    assert coloured.evaluate(above) > 24
    plain.get_by_role("button", name="Copy").click()
    assert page.evaluate("navigator.clipboard.readText()").strip() == "plain words"
    items = "[...document.querySelectorAll('article.assistant li')].map(node => getComputedStyle(node).listStyleType)"
    assert page.evaluate(items) == ["none", "none", "disc"]
    assert page.get_by_role("img", name="Done").count() == 1
    assert page.get_by_role("img", name="To do").count() == 1
    assert page.locator("article.assistant li").all_inner_texts() == ["one", "two", "three"]


@pytest.mark.all
def test_a_question_that_deletes_has_its_focus_on_cancel(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "hello")
    focused = "document.activeElement.innerText"
    page.locator("#list li").hover()
    page.locator("#list li > button").click()
    page.get_by_role("menuitem", name="Delete").click()
    assert page.evaluate(focused) == "Cancel"
    page.keyboard.press("Enter")
    page.keyboard.press("Alt+ArrowUp")
    page.keyboard.press("Delete")
    assert page.evaluate(focused) == "Cancel"
    page.keyboard.press("Enter")
    assert texts(page) == ["hello", "You said: hello."]
    assert page.locator("#list li").count() == 1


@pytest.mark.all
@pytest.mark.parametrize("width", [1280, 390])
def test_the_text_keeps_clear_of_the_composers_corners(serve: Serve, open_page: Open, width: int) -> None:
    page = open_page(serve().url, width=width)
    before = page.locator(".field").bounding_box()
    page.fill("#composer-text", "\n".join(f"A line of text, number {index}" for index in range(40)))
    field, area = (page.locator(place).bounding_box() for place in (".field", "#composer-text"))
    radius = page.evaluate("parseFloat(getComputedStyle(document.querySelector('.field')).borderTopLeftRadius)")
    padding = page.evaluate("parseFloat(getComputedStyle(document.querySelector('#composer-text')).paddingLeft)")
    down, across = area["y"] - field["y"], area["x"] + padding - field["x"]
    assert (radius - min(across, radius)) ** 2 + (radius - min(down, radius)) ** 2 <= (radius - 3) ** 2
    assert area["width"] > field["width"] - 2 * radius, "several lines have the whole width"
    assert page.locator("#send").bounding_box()["y"] >= area["y"] + area["height"]
    page.fill("#composer-text", "")
    assert page.locator(".field").bounding_box() == before


@pytest.mark.all
@pytest.mark.parametrize("width", [1280, 390])
def test_a_new_chat_is_in_the_header_where_the_sidebar_is_closed(serve: Serve, open_page: Open, width: int) -> None:
    page = open_page(serve().url, width=width)
    say(page, "hello")
    button = page.locator("header").get_by_role("button", name="New chat")
    if width > 760:
        assert button.is_hidden()
        page.keyboard.press("Control+b")
    button.click()
    until(page, "!document.querySelector('article') && document.activeElement.id === 'composer-text'")


@pytest.mark.all
@pytest.mark.parametrize("width", [390, 820])
def test_targets_have_44_pixels_for_a_finger(serve: Serve, open_page: Open, tmp_path: Path, width: int) -> None:
    page = open_page(serve().url, width=width, height=844, touch=True, expected="400")
    (tmp_path / "notes.py").write_text("x = 1\n", encoding="utf-8")
    page.set_input_files("#attach-file", tmp_path / "notes.py")
    page.locator("#files li").wait_for()
    assert page.evaluate(SMALL) == []
    for text in ("some markdown, please\n\n```\nplain\n```", "think", "fail"):
        page.fill("#composer-text", text)
        page.tap("#send")
        page.wait_for_selector("article.assistant:last-child:not(.live)")
    assert page.evaluate(SMALL) == []
    page.tap("article.user [data-act=edit]")
    assert page.evaluate(SMALL) == []
    page.get_by_role("button", name="Cancel").tap()
    page.tap("#open-settings")
    assert page.evaluate(SMALL) == []
    page.locator("#settings").get_by_role("button", name="Done").last.tap()
    if page.locator("#open-sidebar").is_visible():
        page.tap("#open-sidebar")
    page.locator("#list li > button").tap()
    assert page.evaluate(SMALL) == []
    page.get_by_role("menuitem", name="Delete").tap()
    assert page.evaluate(SMALL) == []
    page.get_by_role("button", name="Cancel").tap()
    if page.locator("#shade").is_visible():
        page.tap("#close-sidebar")
    page.tap("#to-complete")
    assert page.evaluate(SMALL) == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.all
def test_the_page_speaks_the_words_of_the_field(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    server = serve()
    for locale, message, hint, again, settings, help_text in (
        (
            "en-US",
            "Message pretend-135m…",
            "Enter to send, Shift+Enter for a new line",
            "Regenerate",
            {"This conversation", "System prompt", "Max tokens", "Stop sequence", "System theme"},
            "Show shortcuts",
        ),
        (
            "zh-CN",
            "输入消息…",
            "Enter 发送，Shift+Enter 换行",
            "重新生成",
            {"当前对话", "系统提示词", "最大词元数", "停止序列", "跟随系统"},
            "显示快捷键",
        ),
    ):
        page = open_page(server.url, locale=locale)
        assert page.get_attribute("#composer-text", "placeholder") == message
        assert page.inner_text(".hint") == hint
        groups = page.locator("#model optgroup").evaluate_all("groups => groups.map(group => group.label)")
        assert groups == (["Loaded", "Loads on first use"] if locale == "en-US" else ["已加载", "使用时加载"])
        say(page, "hello")
        assert page.locator("article.assistant").get_by_role("button", name=again).count() == 1
        page.set_input_files("#import-file", tmp_path / "broken.json")
        wrong = "not valid JSON" if locale == "en-US" else "不是有效的 JSON"
        page.locator(".notice.bad", has_text=wrong).wait_for()
        page.keyboard.press("Control+,")
        shown = page.locator("#settings :is(h2, span, option)").all_text_contents()
        assert settings - set(shown) == set()
        page.keyboard.press("Escape")
        page.keyboard.press("Control+/")
        assert help_text in page.locator("#shortcuts dt").all_inner_texts()


@pytest.mark.all
def test_a_number_takes_the_right_plural(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    forms = """(async () => {
        const { t, number } = await import(new URL('webui/js/i18n.js', document.baseURI));
        return [1, 2, 0, 1000].map(n => t('tokens', { n: number(n) }));
    })()"""
    assert page.evaluate(forms) == ["1 token", "2 tokens", "0 tokens", "1,000 tokens"]
