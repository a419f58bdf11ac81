"""A browser and a server for the tests of the web chat; they skip, with the reason, where there is no Chromium."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from system.webui import traffic

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from system.webui.pretend_chat import PretendChat

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")

Serve = Callable[..., "PretendChat"]
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Chromium without a window; not for longer than a module, as where playwright runs no other event loop can."""
    pytest.importorskip("playwright", reason="the web chat is tested through playwright, which is not installed")
    from playwright.sync_api import sync_playwright

    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser is installed: the web chat is tested in one of {', '.join(NAMES)}")
    is_root = getattr(os, "geteuid", lambda: 1)() == 0
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if is_root else [])
        yield started
        started.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server without a model: `serve(key=..., chat=...)`."""
    pytest.importorskip("uvicorn", reason="the web chat is served by uvicorn, which is not installed")
    from system.webui.pretend_chat import PretendChat

    started: list[PretendChat] = []

    def start(**options: Any) -> PretendChat:
        started.append(PretendChat(tmp_path / "conversations", **options))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def open_page(browser: "Browser", tmp_path: Path) -> Iterator[Open]:
    """Open a page in a browser that knows nothing yet, or in that of the page `beside`; wait for the list of models.

    `expected` is in the allowed warnings and errors of its console.

    At the end no page may have written an error to its console, or have asked another server for anything.
    """
    trouble: list[str] = []
    contexts: list[Any] = []

    def watch(page: "Page", url: str, expected: str) -> None:
        def console(message: Any) -> None:
            if message.type in ("error", "warning") and not (expected and expected in message.text):
                trouble.append(f"console: {message.text}")

        def check_request(request: Any) -> None:
            if not request.url.startswith((url.split("#")[0], "blob:", "data:")):
                trouble.append(f"asked {request.url}")

        traffic.watch(page)
        page.on("console", console)
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.on("request", check_request)

    def start(
        url: str,
        width: int = 1200,
        height: int = 800,
        locale: str = "en-US",
        expected: str = "",
        beside: Any = None,
        wait: bool = True,
        touch: bool = False,
    ) -> "Page":
        context = beside.context if beside is not None else None
        if context is None:
            context = browser.new_context(
                viewport={"width": width, "height": height}, locale=locale, has_touch=touch, is_mobile=touch
            )
            context.set_default_timeout(60_000)
            contexts.append(context)
        page = context.new_page()
        watch(page, url, expected)
        page.goto(url)
        if wait:
            page.wait_for_selector("#model option", state="attached")
        return page

    yield start
    for context in contexts:
        context.close()
    assert not trouble
