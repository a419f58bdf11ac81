"""Listens on a socket until a signal says to end: uvicorn, with the limits of the configuration."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from sporelm.backends.backend import Progress
from sporelm.errors import RequestError
from sporelm.serve import logs
from sporelm.serve.app import build_app
from sporelm.serve.config import ServeConfig
from sporelm.serve.connections import limited_protocol
from sporelm.serve.server import Server

BACKLOG = 2048  # connections that wait to be accepted


class Listener(uvicorn.Server):
    """uvicorn's server, which tells ours when it is to end."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.served = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.served.drain()
        super().handle_exit(sig, frame)


def serve(config: ServeConfig, progress: Progress | None = None, announce: Callable[[str], object] = print) -> None:
    """Serve until a signal. Raises SporeError for what cannot be served: models, files, an address that is taken."""
    logs.start(config.log)
    listening = bound(config)
    try:
        asyncio.run(_serve(config, listening, progress, announce))
    finally:
        listening.close()


async def _serve(
    config: ServeConfig, listening: socket.socket, progress: Progress | None, announce: Callable[[str], object]
) -> None:
    app = build_app(config)
    server: Server = app.state.server
    server.models.progress = progress
    try:
        await server.open()  # before anybody can ask, so that what is wrong is one line on stderr
        clear = getattr(progress, "clear", None)
        if clear is not None:
            clear()
        server.models.progress = None
        announce(f"serving {', '.join(server.models.specs)} at {url(config, listening)} (Ctrl-C ends)")
        await Listener(options_of(app, config), server).serve(sockets=[listening])
    finally:
        await server.close()


def options_of(app: Starlette, config: ServeConfig) -> uvicorn.Config:
    """What uvicorn is told."""
    return uvicorn.Config(
        app,
        http=limited_protocol(config),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(5, round(config.head_seconds)),
        timeout_graceful_shutdown=round(config.shutdown_seconds) or 1,
        h11_max_incomplete_event_size=2 * config.max_headers,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
    )


def bound(config: ServeConfig) -> socket.socket:
    """The socket to listen on. Raises RequestError for an address that cannot be had, or TLS files that are none."""
    if config.tls_cert is not None and config.tls_key is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
        except (OSError, ssl.SSLError) as reason:
            raise RequestError(f"TLS with {config.tls_cert} and {config.tls_key} cannot be had: {reason}") from None
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
    except OSError as reason:
        raise RequestError(f"the address {config.host!r} is none of this machine's: {reason.strerror}") from None
    try:
        if sys.platform != "win32":  # there it would let others take the port too
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as reason:
        made.close()
        raise RequestError(
            f"port {config.port} of {config.host} cannot be had: {reason.strerror}; choose another with --port"
        ) from None
    return made


def url(config: ServeConfig, listening: socket.socket) -> str:
    """Where the server is, for people."""
    port = listening.getsockname()[1]
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http{'s' if config.tls_cert else ''}://{host}:{port}"
