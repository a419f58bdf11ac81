"""Listens on a socket until a signal says to end: uvicorn, with the limits of the configuration."""

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from sporelm.backends.backend import Progress
from sporelm.errors import RequestError, SporeError, shown
from sporelm.serve import logs
from sporelm.serve.app import build_app
from sporelm.serve.config import ServeConfig
from sporelm.serve.connections import limited_protocol
from sporelm.serve.models import LEAVING
from sporelm.serve.server import Server

BACKLOG = 2048  # connections that wait to be accepted
ENDINGS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # each system has some of them
WARNING = "warning: "
OPEN_TO_ALL = (
    f"{WARNING}everybody who reaches this address may ask, as there are no keys: give them with --api-key or "
    "--api-keys-file (SPORE_API_KEY), or leave out --host"
)
log = logging.getLogger("sporelm.serve")


class Listener(uvicorn.Server):
    """uvicorn's server, which tells ours when it is to end: answers are finished, or, when their time is over or with a
    second Ctrl-C, broken off, which those who wait for them are told.

    uvicorn would tear the connections, and write a traceback for each.
    """

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.served = server
        self.loop: asyncio.AbstractEventLoop | None = None
        self.heard: list[int] = []  # signals, in their order
        self.opening: asyncio.Future[None] | None = None  # the first model, which is being loaded

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """Hear of signals that ask to end. None raises an exception, which would come in the middle of anything, of an
        import too; the first one is raised again at the end, for whoever started the server."""
        self.loop = asyncio.get_running_loop()
        numbers = [number for name in ENDINGS if (number := getattr(signal, name, None)) is not None]
        if threading.current_thread() is not threading.main_thread():
            numbers = []  # signals are the main thread's
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            if before[number] is not signal.SIG_IGN or number in (signal.SIGINT, signal.SIGTERM):  # as nohup has it
                signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, before[number])
            if numbers and self.heard:
                signal.raise_signal(self.heard[0])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """What uvicorn would do with signals: nothing, as `hearing` has begun before it and ends after it."""
        yield

    async def open(self) -> bool:
        """Load the first model; False if a signal said to end meanwhile. Raises SporeError."""
        self.opening = asyncio.ensure_future(self.served.open())
        try:
            await self.opening
        except (asyncio.CancelledError, SporeError):
            if not self.should_exit:
                raise
        return not self.should_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.served.drain()
        self.heard.append(sig)
        if not self.should_exit:
            self.should_exit = True
            if self.opening is not None and self.loop is not None:
                self.loop.call_soon_threadsafe(self.opening.cancel)
        elif sig == signal.SIGINT and self.loop is not None:  # once more than this is no news
            self.loop.call_soon_threadsafe(self._end_now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.served.answer_jobs.drain()
        if running := self._running:
            log.warning("waiting for %s; Ctrl-C again ends at once", answers(running))
        late = asyncio.get_running_loop().call_later(self.served.config.shutdown_seconds, self._too_late)
        try:
            await super().shutdown(sockets)
            await self.served.answer_jobs.finished()
        finally:
            late.cancel()

    @property
    def _running(self) -> int:
        """Answers that are not finished: requests, and jobs of the web chat."""
        jobs = self.served.answer_jobs
        return len(self.server_state.tasks) - jobs.num_followers + len(jobs)

    def _too_late(self) -> None:
        running, seconds = self._running, self.served.config.shutdown_seconds
        if running:
            log.warning("%s not finished in %g s (shutdown_seconds): ended with an error", answers(running), seconds)
        self._end_now()

    def _end_now(self) -> None:
        """End all answers, and what then still holds a connection."""
        self.served.break_off()
        assert self.loop is not None
        self.loop.call_later(LEAVING, self._disconnect)

    def _disconnect(self) -> None:
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def answers(count: int) -> str:
    """So many answers, in words."""
    return f"{count} answer{'' if count == 1 else 's'}"


def serve(config: ServeConfig, progress: Progress | None = None, announce: Callable[[str], object] = print) -> None:
    """Serve until a signal. Raises SporeError for what cannot be served: models, files, an address that is taken."""
    logs.start(config.log)
    if config.log == "json":  # whoever reads it wants no other lines

        def announce(line: str) -> None:
            level = logging.WARNING if line.startswith(WARNING) else logging.INFO
            log.log(level, line.removeprefix(WARNING))

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
    listener = Listener(options_of(app, config), server)
    listener.config.load()  # its imports, so that nothing but listening is left once the address is told
    with listener.hearing():
        try:
            if not await listener.open():  # before anybody can ask, so that what is wrong is one line on stderr
                return
            clear = getattr(progress, "clear", None)
            if clear is not None:
                clear()
            server.models.progress = None
            for line in words_at_start(config, listening):
                announce(line)
            await listener.serve(sockets=[listening])
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
        h11_max_incomplete_event_size=2 * config.max_headers,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
    )


def bound(config: ServeConfig) -> socket.socket:
    """The socket to listen on. Raises RequestError for a host or port that cannot be bound, and for TLS files without a
    certificate or key."""
    if config.tls_cert is not None and config.tls_key is not None:
        check_tls(config.tls_cert, config.tls_key)
    try:
        found = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
    except OSError as reason:
        raise _bad_host(config.host, reason) from None
    try:
        if sys.platform != "win32":  # there it would let others take the port too
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as reason:
        made.close()
        if reason.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _bad_host(config.host, reason) from None
        raise RequestError(
            f"cannot bind port {config.port} of {config.host}: {reason.strerror}; choose another with --port"
        ) from None
    return made


def _bad_host(host: str, reason: OSError) -> RequestError:
    """Return the error for a host that cannot be bound on any port."""
    why = "it is not an address of this machine" if reason.errno == errno.EADDRNOTAVAIL else reason.strerror
    return RequestError(f"cannot listen on {shown(host, 200)}: {why}; choose another address with --host")


def check_tls(certificate: Path, key: Path) -> None:
    """Raise RequestError, which names the file at fault, for files with which there is no TLS."""
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as reason:
            raise RequestError(f"{option} {str(path)!r} cannot be read: {reason.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError):
        raise RequestError(f"--tls-cert {str(certificate)!r} holds no certificate in PEM form") from None
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as reason:
        if reason.reason == "KEY_VALUES_MISMATCH":
            told = f"--tls-key {str(key)!r} is not the key of --tls-cert {str(certificate)!r}"
        else:
            told = f"--tls-key {str(key)!r} holds no key in PEM form: {reason.reason or reason}"
        raise RequestError(told) from None


def words_at_start(config: ServeConfig, listening: socket.socket) -> list[str]:
    """What is served and where; and a warning where others than this machine's users may ask without a key."""
    names = ", ".join(spec.name for spec in config.models)
    told = f"serving {names} {place(config, listening)} (Ctrl-C ends)"
    if config.adapters:
        titles = [each.title for each in config.adapters]
        told += f"; {config.models[0].name} with the adapter {titles[0]}"
        told += f", or {', '.join(titles[1:])} where requests name it" if titles[1:] else ""
    return [told] if config.keys or config.is_loopback else [told, OPEN_TO_ALL]


def place(config: ServeConfig, listening: socket.socket) -> str:
    """Where the server is, for people: addresses that a browser can open."""
    scheme, port = "https" if config.tls_cert else "http", listening.getsockname()[1]
    if not config.is_everywhere:
        host = f"[{config.host}]" if ":" in config.host else config.host
        return f"at {scheme}://{host}:{port}"
    names = ["localhost"]
    if (own := socket.gethostname().lower()) and (not config.allowed_hosts or own in config.allowed_hosts):
        names.append(own)
    return f"on all addresses, port {port}: " + ", ".join(f"{scheme}://{name}:{port}" for name in dict.fromkeys(names))
