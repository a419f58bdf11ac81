"""Pictures in the web chat: chosen, dropped, pasted; small as they are sent, large on request; kept and exported."""

import base64
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open, Serve
from system.webui.drawn_pictures import ORIENTATION, Image, draw, ready
from system.webui.test_web_chat import DONE, say, until, wait_until_saved

SHOWN = "[...document.querySelectorAll('.picture img')].every(image => image.complete && image.naturalWidth)"
DROP = """([text, name, type]) => {
    const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type }));
    const target = document.querySelector(%s);
    target.dispatchEvent(new %s);
}"""
PASTE = DROP % ("'#composer-text'", "ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })")
LET_GO = DROP % ("'#chat-page'", "DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })")


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    return draw(tmp_path / "cat.png", 320, 240)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """As a phone takes one: large, and on its side."""
    return draw(tmp_path / "photo.jpg", 3000, 4000, turned=True, quality=90)


def sent(server: Any) -> list[Any]:
    """The pictures of the last question, as the model gets them."""
    content = server.requests[-1]["messages"][-1]["content"]
    return [Image.open(io.BytesIO(part["image"])) for part in content if part["type"] == "image"]


def test_pictures_are_chosen_sent_and_kept(serve: Serve, open_page: Open, cat: Path, photo: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url)
    page.set_input_files("#image-file", [cat, photo])
    ready(page, 2)
    assert [image.get_attribute("alt") for image in page.locator("#files img").all()] == ["cat.png", "photo.jpg"]
    say(page, "Which is larger?")
    assert page.locator("#files").is_hidden()
    first, second = sent(server)
    assert (first.format, first.size) == ("PNG", (320, 240)), "a small picture goes as it is"
    assert (second.format, second.size) == ("JPEG", (1536, 2048)), "a large one is scaled down, upright"
    red, blue = second.getpixel((700, 300)), second.getpixel((700, 1800))
    assert red[0] > 150 > red[2]
    assert blue[2] > 150 > blue[0]
    assert ORIENTATION not in second.getexif()
    content = server.requests[-1]["messages"][-1]["content"]
    assert content[-1] == {"type": "text", "text": "Which is larger?"}
    for _ in range(2):
        until(page, f"document.querySelectorAll('.picture img').length === 2 && {SHOWN}")
        assert "with 2 pictures" in page.locator("article.assistant .body").inner_text()
        page.reload()
        page.wait_for_selector(DONE)
    say(page, "And now?")
    assert len(server.requests[-1]["messages"]) == 3, "the next question has the earlier one's pictures"
    assert [part["type"] for part in server.requests[-1]["messages"][0]["content"]] == ["image", "image", "text"]


@pytest.mark.all
def test_pictures_are_pasted_and_dropped_and_taken_away(serve: Serve, open_page: Open, cat: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url)
    text = base64.b64encode(cat.read_bytes()).decode()
    page.evaluate(PASTE, [text, "image.png", "image/png"])
    ready(page, 1)
    page.evaluate(LET_GO, [text, "dropped.png", "image/png"])
    ready(page, 2)
    page.evaluate(LET_GO, [base64.b64encode(b"some notes").decode(), "notes.txt", "text/plain"])
    until(page, "document.querySelectorAll('#files li').length === 3")
    page.get_by_role("button", name="Remove image.png").click()
    until(page, "document.querySelectorAll('#files li').length === 2")
    assert page.evaluate("document.activeElement.id") == "composer-text"
    page.click("#send")  # a picture and a file, and no text
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    content = server.requests[-1]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image", "text"]
    assert content[1]["text"] == "File: notes.txt\n```txt\nsome notes\n```"
    assert page.title() == "dropped.png · Sporelm"


@pytest.mark.all
def test_a_picture_alone_is_a_question(serve: Serve, open_page: Open, cat: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url)
    page.set_input_files("#image-file", cat)
    page.click("#send")  # while it is still on its way
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    assert [part["type"] for part in server.requests[-1]["messages"][-1]["content"]] == ["image"]
    article = page.locator("article.user")
    assert article.locator(".body").is_hidden()
    article.hover()
    article.get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Edit message").fill("What is it?")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('article.user .body').innerText === 'What is it?'")
    page.wait_for_selector(DONE)
    content = server.requests[-1]["messages"][-1]["content"]
    assert [part["type"] for part in content] == ["image", "text"], "an edited question keeps its pictures"


@pytest.mark.all
def test_a_picture_is_enlarged(serve: Serve, open_page: Open, cat: Path, photo: Path) -> None:
    page = open_page(serve(vision=True).url)
    page.set_input_files("#image-file", [cat, photo])
    ready(page, 2)
    say(page, "Look")
    button = page.get_by_role("button", name="Enlarge cat.png")
    button.focus()
    page.keyboard.press("Enter")
    viewer = page.locator("#viewer")
    assert viewer.get_by_role("heading").inner_text() == "cat.png (1/2)"
    until(page, "document.querySelector('#viewer > img').naturalWidth === 320")
    page.keyboard.press("ArrowRight")
    until(page, "document.querySelector('#viewer > img').naturalHeight === 2048")
    box = viewer.bounding_box()
    assert box is not None
    assert box["height"] <= 800, "all of it is in the window"
    viewer.get_by_role("button", name="Previous picture").click()
    assert viewer.locator("img").get_attribute("alt") == "cat.png"
    page.keyboard.press("Escape")
    assert viewer.is_hidden()
    assert page.evaluate("document.activeElement.title") == "cat.png"


@pytest.mark.all
def test_a_model_that_cannot_see_says_so(serve: Serve, open_page: Open, cat: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url)
    assert page.get_by_role("button", name="Attach pictures").is_visible()
    page.set_input_files("#image-file", cat)
    ready(page, 1)
    page.select_option("#model", "other-1b")
    assert page.locator("#attach-image").is_hidden()
    assert "other-1b cannot see pictures" in page.locator("#attach").get_attribute("aria-label")
    page.click("#send")
    page.get_by_text("Remove them, or choose another model").wait_for()
    assert not server.requests, "nothing is sent"
    page.evaluate(LET_GO, [base64.b64encode(cat.read_bytes()).decode(), "second.png", "image/png"])
    page.get_by_text("second.png was not attached: other-1b cannot see pictures").wait_for()
    assert page.locator("#files li").count() == 1


@pytest.mark.all
def test_the_page_names_files_that_it_cannot_read(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    page = open_page(serve(vision=True).url)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    sound = tmp_path / "sound.mp3"
    sound.write_bytes(b"ID3")
    page.set_input_files("#attach-file", [broken, sound])
    page.get_by_text("broken.png was not attached: the browser cannot read this picture").wait_for()
    page.get_by_text("sound.mp3 was not attached: audio and video cannot be read").wait_for()
    until(page, "document.querySelector('#files').hidden")


@pytest.mark.all
def test_exports_have_the_pictures(serve: Serve, open_page: Open, cat: Path, tmp_path: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url)
    page.set_input_files("#image-file", cat)
    ready(page, 1)
    say(page, "What is it?")

    def export(name: str) -> Path:
        page.locator("#list li").first.hover()
        page.locator("#list li").first.locator("button").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=name).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        return path

    markdown = export("Export as Markdown").read_text(encoding="utf-8")
    assert "## You\n\n![cat.png][image-1]\n\nWhat is it?\n" in markdown
    found = re.search(r"^\[image-1\]: data:image/png;base64,(\S+)$", markdown, re.MULTILINE)
    assert found is not None
    assert base64.b64decode(found[1]) == cat.read_bytes()
    file = export("Export as JSON")
    bundle = json.loads(file.read_text(encoding="utf-8"))
    assert [base64.b64decode(text) for text in bundle["images"].values()] == [cat.read_bytes()]
    page.locator("#list li").first.hover()
    page.locator("#list li").first.locator("button").click()
    page.get_by_role("menuitem", name="Delete").click()
    page.locator("#ask").get_by_role("button", name="Delete").click()
    until(page, "document.querySelectorAll('#list li').length === 0")
    images = server.jobs.store.folder
    assert not list(images.glob("*/images/*.png")), "a deleted conversation leaves no picture"
    page.set_input_files("#import-file", file)
    until(page, f"document.querySelectorAll('.picture img').length === 1 && {SHOWN}")
    assert len(list(images.glob("*/images/*.png"))) == 1


@pytest.mark.all
def test_a_copy_of_a_deleted_conversation_keeps_its_pictures(serve: Serve, open_page: Open, cat: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url, expected="400")
    page.set_input_files("#image-file", cat)
    ready(page, 1)
    say(page, "What is it?")
    store = server.jobs.store
    (conversation,) = store.page("").conversations
    store.delete("", conversation["id"])
    server.call(lambda: server.jobs.conversation_deleted("", conversation["id"]))
    page.get_by_role("button", name="Keep a copy as a new chat").click()
    until(page, "document.querySelectorAll('#bars .bar').length === 0")
    wait_until_saved(page)
    assert len(list(store.folder.glob("*/images/*.png"))) == 1
    page.reload()
    until(page, f"document.querySelectorAll('.picture img').length === 1 && {SHOWN}")


@pytest.mark.all
def test_pictures_are_counted_before_they_are_sent(serve: Serve, open_page: Open, cat: Path) -> None:
    server = serve(vision=True)
    server.context, server.counts = 1500, True
    page = open_page(server.url)
    page.set_input_files("#image-file", cat)
    ready(page, 1)
    say(page, "one")
    assert [len(each.get("images", ())) for each in server.counted[-1]["messages"]] == [1]
    page.set_input_files("#image-file", cat)
    ready(page, 1)
    page.fill("#composer-text", "two")
    page.keyboard.press("Enter")
    page.get_by_text("and the model takes 1,500").wait_for()
    assert sum(len(each.get("images", ())) for each in server.counted[0]["messages"]) == 1
    page.get_by_role("button", name="Leave out the 2 oldest messages").click()
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    assert [len(each["content"]) for each in server.requests[-1]["messages"]] == [2]


@pytest.mark.all
def test_a_phone_takes_a_photo(serve: Serve, open_page: Open, photo: Path) -> None:
    server = serve(vision=True)
    page = open_page(server.url, width=360, height=700, touch=True)
    assert page.get_by_role("button", name="Take a photo").is_visible()
    field = page.locator("#camera-file")
    assert (field.get_attribute("accept"), field.get_attribute("capture")) == ("image/*", "environment")
    page.set_input_files("#camera-file", photo)
    ready(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.fill("#composer-text", "What is on it?")
    page.get_by_role("button", name="Send").tap()
    page.wait_for_selector(DONE)
    assert sent(server)[0].size == (1536, 2048)
    until(page, SHOWN)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
