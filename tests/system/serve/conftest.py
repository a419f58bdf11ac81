"""Servers that run: on a real socket, in a thread of their own, with the story model."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from copied import copied
from sporelm.serve.app import build_app
from sporelm.serve.config import ModelSpec, ServeConfig
from sporelm.serve.listening import Listener, bound, options_of
from sporelm.serve.server import Server

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '' }}{% endif %}"
)


@dataclass
class Running:
    """A server that takes requests."""

    config: ServeConfig
    server: Server
    port: int
    loop: asyncio.AbstractEventLoop
    listener: Listener
    clients: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        """An HTTP client of this server, closed with it."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        options = {"verify": False} | options  # to read certificates, which nobody shows, takes tens of ms
        made = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **options)
        return self.clients.enter_context(made)

    def engine_idle(self) -> bool:
        """Whether no request waits or runs in any model."""
        return all(model.llm.llm.engine.scheduler.idle for model in self.server.models.loaded.values())


def run(config: ServeConfig, open_model: Any = None) -> tuple[Running, Callable[[], None]]:
    """Start a server; it, and what stops it."""
    app = build_app(config, open_model)
    listening = bound(config)
    listener = Listener(options_of(app, config), app.state.server)
    ready, loops = threading.Event(), []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        with listener.hearing():
            task = asyncio.ensure_future(listener.serve(sockets=[listening]))
            while not listener.started and not task.done():
                await asyncio.sleep(0.005)
            ready.set()
            await task

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="server")
    thread.start()
    while not ready.wait(0.05):
        assert thread.is_alive(), "the server did not start"
    assert listener.started
    running = Running(config, app.state.server, listening.getsockname()[1], loops[0], listener)

    def stop() -> None:
        running.clients.close()
        listener.should_exit = True
        thread.join(60)
        assert not thread.is_alive()

    return running, stop


@pytest.fixture(scope="session")
def chatty(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The story model with a chat template that puts the messages in a row."""
    folder = copied(story, tmp_path_factory.mktemp("chatty") / "chatty")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": TEMPLATE}))
    return folder


def options(**more: Any) -> dict[str, Any]:
    """Fields of a test's configuration: any free port, one thread."""
    return {"port": 0, "engine": {"threads": 1}} | more


@pytest.fixture(scope="module")
def served(chatty: Path) -> Iterator[Running]:
    """A server of one chat model, `story`, without keys."""
    running, stop = run(ServeConfig(models=(ModelSpec("story", str(chatty)),), **options()))
    yield running
    stop()


@pytest.fixture
def serve(chatty: Path) -> Iterator[Callable[..., Running]]:
    """Start servers with a test's own configuration."""
    stops = []

    def start(open_model: Any = None, **more: Any) -> Running:
        fields = options(models=(ModelSpec("story", str(chatty)),)) | more
        running, stop = run(ServeConfig(**fields), open_model)
        stops.append(stop)
        return running

    yield start
    for stop in stops:
        stop()
