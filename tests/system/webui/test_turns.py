"""Actions on messages in the browser: go on, take away, send files along, wait, take them with you."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.test_web_chat import DONE, say, texts, until, wait_until_saved


def ended(page: Any) -> None:
    page.wait_for_selector(DONE)
    wait_until_saved(page)


@pytest.mark.all
def test_an_answer_goes_on_where_it_was_cut(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    page.keyboard.press("Control+,")
    page.fill("#set-max_tokens", "77")
    page.keyboard.press("Escape")
    say(page, "cut here")
    note = page.locator("article.assistant .note")
    assert "token limit" in note.inner_text()
    note.get_by_role("button", name="Continue").click()
    until(page, "document.querySelector('article.assistant .body').innerText.includes('more')")
    ended(page)
    assert texts(page) == ["cut here", "You said: cut here. and more."]
    body = server.requests[-1]
    assert body["continues"]
    assert body["messages"][-1] == {"role": "assistant", "content": "You said: cut here."}
    assert body["max_tokens"] == 77
    assert note.is_hidden()
    assert "7 tokens" in page.inner_text("article.assistant .stats"), "of both parts"
    page.reload()
    ended(page)
    assert texts(page)[1] == "You said: cut here. and more."


@pytest.mark.all
def test_a_stopped_answer_goes_on_by_keyboard(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    say(page, "slow words", wait=False)
    until(page, "document.querySelector('article.assistant .body').innerText.includes('word3')")
    page.keyboard.press("Escape")
    ended(page)
    before = texts(page)[1]
    page.keyboard.press("Alt+ArrowUp")
    page.keyboard.press("g")
    until(page, "document.querySelector('article.assistant .body').innerText.includes('more')")
    ended(page)
    assert texts(page)[1] == f"{before} and more."
    assert page.evaluate("document.activeElement.className").split()[0] == "assistant"
    assert server.requests[-1]["max_tokens"] == 1024


@pytest.mark.all
def test_an_answer_that_cannot_go_on_stays_as_it_was(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url, expected="400")
    say(page, "cut and never more")
    figures = page.inner_text("article.assistant .stats")
    page.get_by_role("button", name="Continue").click()
    page.locator(".notice", has_text="the seed is out of range").wait_for()
    page.wait_for_selector(DONE)
    assert "token limit" in page.inner_text("article.assistant .note")
    assert page.inner_text("article.assistant .stats") == figures


@pytest.mark.all
def test_a_full_context_is_told(serve: Serve, open_page: Open) -> None:
    server = serve()
    server.context = 68
    page = open_page(server.url)
    say(page, "cut at last")
    assert "The context is full" in page.inner_text("article.assistant .note")
    assert not page.get_by_role("button", name="Continue").count()
    assert page.inner_text("#context") == "68 of 68 context tokens"


@pytest.mark.all
def test_messages_are_deleted_with_what_follows(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    for text in ("one", "two"):
        say(page, text)
    page.locator("article").nth(3).get_by_role("button", name="Regenerate").click()
    page.wait_for_selector("article.assistant .branch")
    ended(page)
    page.locator("article").nth(3).get_by_role("button", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    until(page, "!document.querySelector('.branch')")
    assert texts(page) == ["one", "You said: one.", "two", "You said: two."], "another version takes its place"
    page.locator("article").nth(1).get_by_role("button", name="Delete").click()
    assert "the 2 messages that follow" in page.inner_text("#ask")
    page.locator("#ask").get_by_role("button", name="Cancel").click()
    assert page.locator("article").count() == 4
    page.locator("article").nth(1).get_by_role("button", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    until(page, "document.querySelectorAll('article').length === 1")
    wait_until_saved(page)
    page.reload()
    page.wait_for_selector("article")
    assert texts(page) == ["one"]
    page.locator("article").hover()
    page.get_by_role("button", name="Regenerate").click()
    ended(page)
    assert texts(page) == ["one", "You said: one."], "a question without an answer can be answered"


@pytest.mark.all
def test_what_one_tab_deletes_stays_deleted(serve: Serve, open_page: Open) -> None:
    first = open_page(serve().url, expected="409")
    say(first, "one")
    say(first, "two")
    second = open_page(first.url, beside=first, expected="409")
    second.wait_for_selector(DONE)
    first.locator("article").nth(2).hover()
    first.locator("article").nth(2).get_by_role("button", name="Delete").click()
    first.locator("#ask").get_by_role("button", name="Delete").click()
    until(first, "document.querySelectorAll('article').length === 2")
    wait_until_saved(first)
    second.locator("article").nth(1).get_by_role("button", name="Regenerate").click()
    second.wait_for_selector("article.assistant .branch")
    ended(second)
    first.reload()
    first.wait_for_selector(DONE)
    stored = first.evaluate("fetch('api/ui/conversations/' + location.hash.slice(4)).then(reply => reply.json())")
    assert sorted(each["content"] for each in stored["messages"]) == ["You said: one.", "You said: one.", "one"]


@pytest.mark.all
def test_text_files_go_with_a_message(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    server = serve()
    page = open_page(server.url)
    (tmp_path / "notes.py").write_text("print('```')\n", encoding="utf-8")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    (tmp_path / "large.txt").write_text("x" * 500_000, encoding="utf-8")
    names = ("notes.py", "picture.png", "data.bin", "large.txt")
    page.set_input_files("#attach-file", [tmp_path / name for name in names])
    until(page, "document.querySelectorAll('.notice').length === 3")
    told = page.locator(".notice").all_inner_texts()
    assert ["cannot see pictures" in told[0], "not a text file" in told[1], "400 kB" in told[2]] == [True, True, True]
    assert page.locator("#files li").all_inner_texts() == ["notes.py\n12 characters"]
    say(page, "What is this?")
    content = server.requests[-1]["messages"][-1]["content"]
    assert content == "File: notes.py\n````py\nprint('```')\n````\n\nWhat is this?"
    assert page.locator("#files li").count() == 0
    asked = page.locator("article.user")
    assert asked.locator(".file-name").inner_text() == "notes.py"
    assert asked.locator(".body").inner_text() == "What is this?"
    asked.locator(".file summary").click()
    assert asked.locator("pre").inner_text() == "print('```')"
    asked.hover()
    asked.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit message").fill("And now?")
    page.keyboard.press("Enter")
    page.wait_for_selector("article.user .branch")
    ended(page)
    assert server.requests[-1]["messages"][-1]["content"].endswith("print('```')\n````\n\nAnd now?"), "the file stays"


DROP = """([kind, name]) => {
    const data = new DataTransfer();
    data.items.add(new File(['some text'], name, { type: 'text/plain' }));
    const [init, node] = [{ bubbles: true, cancelable: true }, document.querySelector('#composer-text')];
    if (kind === 'paste') node.dispatchEvent(new ClipboardEvent('paste', { ...init, clipboardData: data }));
    else for (const step of ['dragenter', 'dragover', 'drop'])
        node.dispatchEvent(new DragEvent(step, { ...init, dataTransfer: data }));
}"""


@pytest.mark.all
def test_files_are_dropped_and_pasted(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.evaluate(DROP, ["drop", "dropped.txt"])
    page.evaluate(DROP, ["paste", "pasted.txt"])
    until(page, "document.querySelectorAll('#files li').length === 2")
    assert page.locator("#files .file-name").all_inner_texts() == ["dropped.txt", "pasted.txt"]
    page.get_by_role("button", name="Remove dropped.txt").click()
    assert page.locator("#files .file-name").all_inner_texts() == ["pasted.txt"]
    assert not page.locator(".dropping").count()


@pytest.mark.all
def test_a_text_that_no_message_holds_is_not_sent(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    page.fill("#composer-text", "x" * 500_001)
    page.press("#composer-text", "Enter")
    page.locator(".notice", has_text="500,001 characters; a message can have at most 500,000").wait_for()
    assert len(page.input_value("#composer-text")) == 500_001
    assert page.locator("article").count() == 0


@pytest.mark.all
def test_a_long_question_is_folded(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "\n".join(f"line {index}" for index in range(60)))
    body = page.locator("article.user .body")
    short = body.bounding_box()["height"]
    page.get_by_role("button", name="Show all").click()
    assert body.bounding_box()["height"] > 2 * short
    page.get_by_role("button", name="Show less").click()
    assert body.bounding_box()["height"] == short


@pytest.mark.all
def test_a_wait_is_told(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url, expected="429")
    say(page, "late answer", wait=False)
    until(page, "[...document.querySelectorAll('.wait')].at(-1).innerText.includes('3 requests in the server')")
    server.go.set()
    ended(page)
    assert page.locator(".wait").last.is_hidden()
    say(page, "busy now", wait=False)
    until(page, "[...document.querySelectorAll('.wait')].at(-1).innerText.includes('Trying again in')")
    ended(page)
    assert texts(page)[-1] == "You said: busy now.", "a busy server is asked again"
    assert server.busy == 0
    page.select_option("#model", "other-1b")
    server.go.clear()
    say(page, "late again", wait=False)
    until(page, "[...document.querySelectorAll('.wait')].at(-1).innerText.includes('Loading the model')")
    server.go.set()
    ended(page)


@pytest.mark.all
def test_the_picker_says_what_is_loaded(serve: Serve, open_page: Open) -> None:
    page = open_page(serve(chat=False).url)
    until(page, "location.hash === '#/complete'")
    groups = page.locator("#model optgroup").evaluate_all("nodes => nodes.map(node => [node.label, node.innerText])")
    assert groups == [["Loaded", "pretend-135m · no chat template"], ["Loads on first use", "other-1b"]]


@pytest.mark.all
def test_a_model_without_a_template_leads_to_complete_and_one_with_it_back(serve: Serve, open_page: Open) -> None:
    server = serve()
    server.mute = "other-1b"
    page = open_page(server.url, expected="400")
    page.select_option("#model", "other-1b")
    say(page, "hello", wait=False)
    until(page, "location.hash === '#/complete'")
    page.locator(".notice", has_text="other-1b has no chat template").wait_for()
    page.select_option("#model", "pretend-135m")
    until(page, "location.hash.startsWith('#/c/')")
    page.get_by_role("button", name="Try again").click()
    ended(page)
    assert texts(page) == ["hello", "You said: hello."]
    page.select_option("#model", "other-1b")
    page.click("#new-chat")
    page.select_option("#model", "pretend-135m")
    page.select_option("#model", "other-1b")
    until(page, "location.hash === '#/complete'")
    page.select_option("#model", "pretend-135m")
    until(page, "location.hash === '#/'")


@pytest.mark.all
def test_settings_that_cannot_be_stay_open_and_say_what_can(serve: Serve, open_page: Open) -> None:
    server = serve()
    page = open_page(server.url)
    page.keyboard.press("Control+,")
    page.fill("#set-top_p", "7")
    page.fill("#set-top_k", "1.5")
    page.locator("#settings").get_by_role("button", name="Done").last.click()
    assert page.locator("#settings").is_visible()
    assert page.locator("#wrong-top_p").inner_text() == "Enter a number from 0.01 to 1"
    assert page.locator("#wrong-top_k").inner_text() == "Enter a whole number from 0 to 1,000,000"
    assert page.locator("#set-top_k").get_attribute("aria-invalid") == "true"
    page.fill("#set-top_p", "0.7")
    page.fill("#set-top_k", "-5")
    page.keyboard.press("Escape")
    assert page.locator("#settings").is_visible()
    assert page.locator("#wrong-top_p").is_hidden()
    page.fill("#set-top_k", "3")
    page.keyboard.press("Escape")
    page.locator("#settings").wait_for(state="hidden")
    say(page, "uncached words")
    assert (server.requests[-1]["top_p"], server.requests[-1]["top_k"]) == (0.7, 3)
    assert "cached" not in page.locator("article.assistant .stats").inner_text(), "where there are none"
    say(page, "hello")
    assert "48 of 64 prompt tokens cached" in page.locator("article.assistant .stats").last.inner_text()


@pytest.mark.all
def test_notices_cover_nothing(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    page = open_page(serve().url, expected="400")
    say(page, "it will fail\n" * 60, wait=False)
    page.locator(".note.bad").wait_for()
    (tmp_path / "fine.txt").write_text("fine", encoding="utf-8")
    (tmp_path / "old.txt").write_bytes("na\xefve".encode("latin-1"))
    (tmp_path / "program").write_bytes(bytes(range(256)))
    page.set_input_files("#attach-file", [tmp_path / name for name in ("fine.txt", "old.txt", "program")])
    until(page, "document.querySelectorAll('.notice').length === 2")
    assert page.locator(".notice").all_inner_texts() == [
        "old.txt was not attached: it is not UTF-8. Save it as UTF-8 first.",
        "program was not attached: it is not a text file",
    ]
    boxes = [page.locator(place).bounding_box() for place in (".note.bad", "#notices", "#files", "#composer-text")]
    assert all(upper["y"] + upper["height"] <= lower["y"] + 0.5 for upper, lower in pairwise(boxes))


@pytest.mark.all
def test_a_conversation_is_taken_along(serve: Serve, open_page: Open) -> None:
    page = open_page(serve().url)
    say(page, "a talk about: files?")

    def export(name: str) -> tuple[str, str]:
        page.locator("#list li").hover()
        page.locator("#list li > button").click()
        with page.expect_download() as caught:
            page.get_by_role("menuitem", name=name).click()
        return caught.value.suggested_filename, Path(caught.value.path()).read_text(encoding="utf-8")

    name, text = export("Export as Markdown")
    assert name == "a-talk-about-files.md"
    assert text.startswith("# a talk about: files?\n\n*")
    assert text.endswith(
        "## You\n\na talk about: files?\n\n## Assistant (pretend-135m)\n\nYou said: a talk about: files?.\n"
    )
    name, text = export("Export as JSON")
    assert name == "a-talk-about-files.json"
    assert len(json.loads(text)["conversations"]) == 1
