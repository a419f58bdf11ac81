"""Servers that run: on a real socket, in a thread of their own, with the story model."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from sporelm.serve.app import build_app
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.server_state import Server
from sporelm.serve.uvicorn_runner import UvicornRunner, open_socket, uvicorn_config


@dataclass
class Running:
    """A server that takes requests."""

    config: ServeConfig
    server: Server
    port: int
    loop: asyncio.AbstractEventLoop
    listener: UvicornRunner
    clients: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        """An HTTP client of this server, closed with it."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        options = {"verify": False} | options  # to read certificates, which no server presents, takes tens of ms
        made = httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False, **options)
        return self.clients.enter_context(made)

    def engine_idle(self) -> bool:
        """Whether no request waits or runs in any model."""
        return all(model.async_llm.is_idle for model in self.server.models.loaded.values())


def run_server(config: ServeConfig, open_model: Any = None) -> tuple[Running, Callable[[], None]]:
    """Start a server; it, and what stops it."""
    app = build_app(config, open_model)
    listening = open_socket(config)
    listener = UvicornRunner(uvicorn_config(app, config), app.state.server)
    ready, loops = threading.Event(), []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        with listener.signal_handlers():
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


def server_options(**more: Any) -> dict[str, Any]:
    """Fields of a test's configuration: any free port, one thread."""
    return {"port": 0, "engine": {"threads": 1}} | more
