"""The web chat on the server itself, with a real model: talking, branching, stopping, a reload."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from system.webui.conftest import Open
from system.webui.test_web_chat import DONE, say, texts, until, wait_until_saved


@pytest.fixture
def url(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with SmolLM2 whose conversations lie in a folder of their own."""
    uvicorn = pytest.importorskip("uvicorn", reason="the server needs uvicorn, which is not installed")
    from sporelm.serve.app import build_app
    from sporelm.serve.serve_config import ModelSpec, ServeConfig

    monkeypatch.setattr("sporelm.serve.conversations.conversation_store.default_folder", lambda: tmp_path)
    app = build_app(ServeConfig(models=(ModelSpec("smollm2", str(smollm2)),), session_dir=tmp_path))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(30)


PATIENCE = 120_000  # ms; the first answer may have to wait for kernels to be compiled


@pytest.mark.all
def test_a_real_chat(url: str, open_page: Open) -> None:
    page = open_page(url)
    page.set_default_timeout(PATIENCE)
    page.keyboard.press("Control+,")
    page.fill("#set-temperature", "0")
    page.fill("#set-max_tokens", "24")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    say(page, "What is the capital of France?")
    first = texts(page)[1]
    assert first
    assert "tokens/s" in page.inner_text("article.assistant .stats")
    say(page, "And of Italy?")
    cached = page.locator("article.assistant .stats").nth(1).inner_text()
    found = re.search(r"(\d+) of (\d+) prompt tokens cached", cached)
    assert found is None or 0 < int(found[1]) <= int(found[2]), "where there are none nothing is said"
    page.locator("article").nth(1).get_by_role("button", name="Regenerate").click()
    page.wait_for_selector("article.assistant .branch")
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    assert texts(page)[1] == first, "greedy answers are repeated"
    page.click("#new-chat")
    page.keyboard.press("Control+,")
    page.fill("#set-max_tokens", "2000")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    say(page, "Tell me a very long story about a river", wait=False)
    until(page, "document.querySelector('article.assistant .body').innerText.length > 60", PATIENCE / 1000)
    page.click("#stop")
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    shown = texts(page)
    page.reload()
    page.wait_for_selector(DONE)
    assert texts(page) == shown
    assert page.locator("#list li").count() == 2


@pytest.mark.all
def test_a_real_completion(url: str, open_page: Open) -> None:
    page = open_page(url + "#/complete")
    page.set_default_timeout(PATIENCE)
    page.keyboard.press("Control+,")
    page.fill("#set-temperature", "0")  # or another word may be drawn
    page.keyboard.press("Escape")
    page.fill("#complete-text", "The capital of France is")
    page.keyboard.press("Control+Enter")
    until(page, "document.querySelector('#complete-text').value.includes('Paris')", PATIENCE / 1000)
    page.keyboard.press("Escape")
    page.wait_for_selector("#complete-run")


@pytest.mark.all
def test_a_real_answer_goes_on_as_if_it_had_not_been_cut(url: str, open_page: Open) -> None:
    page = open_page(url)
    page.set_default_timeout(PATIENCE)

    def ask_story(tokens: int) -> None:
        page.click("#new-chat")
        page.keyboard.press("Control+,")
        page.fill("#set-temperature", "0")
        page.fill("#set-max_tokens", str(tokens))
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        say(page, "Write a short story about a river and a mill.")

    ask_story(48)
    whole = texts(page)[1]
    ask_story(24)
    page.get_by_role("button", name="Continue").click()
    page.wait_for_selector("article.assistant .note[hidden]", state="attached")
    page.wait_for_selector(DONE)
    wait_until_saved(page)
    assert texts(page)[1] == whole
    assert "48 tokens" in page.inner_text("article.assistant .stats")
    stats = page.request.get(page.url.replace("#/c/", "api/ui/conversations/")).json()["messages"][1]["stats"]
    assert stats["completion_tokens"] == 48
    assert page.inner_text("#context").startswith(f"{stats['prompt_tokens'] + 48} of 8,192")
    shown = float(page.inner_text("article.assistant .stats").replace(",", "").split(" tokens/s")[0].split()[-1])
    assert abs(shown - stats["tokens_per_s"]) <= 0.51, "the server's own figure"


@pytest.mark.all
def test_a_tiny_model_that_sees_is_asked_about_a_photo(tmp_path: Path, open_page: Open, monkeypatch: Any) -> None:
    """From the photo in the browser to the rows of the vision tower, and the same picture in the next question."""
    pytest.importorskip("tokenizers", reason="the model's tokenizer is written with tokenizers, which is not installed")
    from drawn_vision import write_qwen2vl
    from sporelm.serve.serve_config import ModelSpec, ServeConfig
    from system.serve.running_server import run_server, server_options
    from system.webui.drawn_pictures import draw, ready

    photo = draw(tmp_path / "photo.jpg", 3000, 4000, turned=True, quality=90)
    folder = write_qwen2vl(tmp_path / "eyes")
    config = ServeConfig(**server_options(models=(ModelSpec("eyes", str(folder)),), session_dir=tmp_path / "kept"))
    running, stop = run_server(config)
    try:
        page = open_page(f"{running.url}/")
        page.set_default_timeout(PATIENCE)
        page.keyboard.press("Control+,")
        page.fill("#set-max_tokens", "16")
        page.keyboard.press("Tab")
        page.keyboard.press("Escape")
        page.set_input_files("#image-file", photo)
        ready(page, 1)
        say(page, "What is on it?")
        assert page.locator("article.assistant .note").is_hidden() or "limit" in page.inner_text(
            "article.assistant .note"
        )
        say(page, "And below?")
        second = page.locator("article.assistant .stats").nth(1).inner_text()
        found = re.search(r"(\d+) of (\d+) prompt tokens cached", second)
        assert found is not None, "the picture is in the cache"
        assert int(found[1]) >= 64
        until(page, "document.querySelector('.picture img').naturalWidth === 1536")
    finally:
        stop()
