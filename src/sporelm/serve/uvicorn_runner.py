"""Runs uvicorn on a socket until a signal asks the server to end, with the limits of the configuration."""

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

from sporelm.backends.protocol import Progress
from sporelm.errors import RequestError, SporeError, safe_repr
from sporelm.serve.app import build_app
from sporelm.serve.http.connection_limits import limited_protocol
from sporelm.serve.http.request_log import configure_logging
from sporelm.serve.model_pool.model_pool import RELEASE_SECONDS
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.server_state import Server

BACKLOG = 2048  # connections that wait to be accepted
END_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # each system has some of them
WARNING = "warning: "
NO_KEY_WARNING = (
    f"{WARNING}no API key is set: anyone who can reach this address can use the server. Set keys with --api-key or "
    "--api-keys-file (SPORE_API_KEY), or leave out --host"
)
log = logging.getLogger("sporelm.serve")


class UvicornRunner(uvicorn.Server):
    """uvicorn's server with a graceful end: running answers are finished. After `shutdown_seconds`, or a second Ctrl-C,
    they end with an error that their clients receive.

    uvicorn itself would drop the connections and log a traceback for each.
    """

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self.server = server
        self.loop: asyncio.AbstractEventLoop | None = None
        self.received_signals: list[int] = []
        self.opening: asyncio.Future[None] | None = None  # the load of the first model

    @contextlib.contextmanager
    def signal_handlers(self) -> Iterator[None]:
        """Handle the signals that ask the server to end.

        No handler raises an exception, which would interrupt anything, even an import. The first signal is raised again
        at the end, for the caller's own handler.
        """
        self.loop = asyncio.get_running_loop()
        numbers = [number for name in END_SIGNALS if (number := getattr(signal, name, None)) is not None]
        if threading.current_thread() is not threading.main_thread():
            numbers = []  # only the main thread can handle signals
        previous = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            # nohup ignores SIGHUP, which stays ignored
            if previous[number] is not signal.SIG_IGN or number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, previous[number])
            if numbers and self.received_signals:
                signal.raise_signal(self.received_signals[0])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Replace uvicorn's own handlers with nothing: `signal_handlers` is active around them."""
        yield

    async def open(self) -> bool:
        """Load the first model. Return False if a signal asked the server to end meanwhile. Raises SporeError."""
        self.opening = asyncio.ensure_future(self.server.open())
        try:
            await self.opening
        except (asyncio.CancelledError, SporeError):
            if not self.should_exit:
                raise
        return not self.should_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.server.drain()
        self.received_signals.append(sig)
        if not self.should_exit:
            self.should_exit = True
            if self.opening is not None and self.loop is not None:
                self.loop.call_soon_threadsafe(self.opening.cancel)
        elif sig == signal.SIGINT and self.loop is not None:  # further signals change nothing
            self.loop.call_soon_threadsafe(self._end_now)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.server.answer_jobs.drain()
        if num_running := self._num_running:
            log.warning("waiting for %s; Ctrl-C again ends at once", answer_count(num_running))
        timer = asyncio.get_running_loop().call_later(self.server.config.shutdown_seconds, self._end_late_answers)
        try:
            await super().shutdown(sockets)
            await self.server.answer_jobs.wait_until_finished()
        finally:
            timer.cancel()

    @property
    def _num_running(self) -> int:
        """Answers that are not finished: requests, and jobs of the web chat."""
        jobs = self.server.answer_jobs
        return len(self.server_state.tasks) - jobs.num_followers + len(jobs)

    def _end_late_answers(self) -> None:
        if num_running := self._num_running:
            seconds = self.server.config.shutdown_seconds
            log.warning(
                "%s not finished in %g s (shutdown_seconds): ended with an error", answer_count(num_running), seconds
            )
        self._end_now()

    def _end_now(self) -> None:
        """End all answers, and then the connections that are still open."""
        self.server.cancel_answers()
        assert self.loop is not None
        self.loop.call_later(RELEASE_SECONDS, self._disconnect)

    def _disconnect(self) -> None:
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def answer_count(count: int) -> str:
    """Return "1 answer" or "2 answers"."""
    return f"{count} answer{'' if count == 1 else 's'}"


def serve(config: ServeConfig, progress: Progress | None = None, announce: Callable[[str], object] = print) -> None:
    """Serve until a signal. Raises SporeError for a model, a file or an address that cannot be used."""
    configure_logging(config.log)
    if config.log == "json":  # then stderr holds nothing but JSON

        def announce(line: str) -> None:
            level = logging.WARNING if line.startswith(WARNING) else logging.INFO
            log.log(level, line.removeprefix(WARNING))

    listener = open_socket(config)
    try:
        asyncio.run(_serve(config, listener, progress, announce))
    finally:
        listener.close()


async def _serve(
    config: ServeConfig, listener: socket.socket, progress: Progress | None, announce: Callable[[str], object]
) -> None:
    app = build_app(config)
    server: Server = app.state.server
    server.models.progress = progress
    runner = UvicornRunner(uvicorn_config(app, config), server)
    runner.config.load()  # its imports, so that the server listens as soon as its address is announced
    with runner.signal_handlers():
        try:
            if not await runner.open():  # before connections are accepted, so that an error is one line on stderr
                return
            clear = getattr(progress, "clear", None)
            if clear is not None:
                clear()
            server.models.progress = None
            for line in startup_lines(config, listener):
                announce(line)
            await runner.serve(sockets=[listener])
        finally:
            await server.close()


def uvicorn_config(app: Starlette, config: ServeConfig) -> uvicorn.Config:
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


def open_socket(config: ServeConfig) -> socket.socket:
    """Return the socket to listen on. Raises RequestError for a host or port that cannot be bound, and for TLS files
    without a certificate or key."""
    if config.tls_cert is not None and config.tls_key is not None:
        check_tls(config.tls_cert, config.tls_key)
    try:
        addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as reason:
        raise _bad_host(config.host, reason) from None
    try:
        if sys.platform != "win32":  # there it would let other processes bind the port too
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as reason:
        listener.close()
        if reason.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise _bad_host(config.host, reason) from None
        raise RequestError(
            f"cannot bind port {config.port} of {config.host}: {reason.strerror}; choose another with --port"
        ) from None
    return listener


def _bad_host(host: str, reason: OSError) -> RequestError:
    """Return the error for a host that cannot be bound on any port."""
    why = "it is not an address of this machine" if reason.errno == errno.EADDRNOTAVAIL else reason.strerror
    return RequestError(f"cannot listen on {safe_repr(host, 200)}: {why}; choose another address with --host")


def check_tls(certificate: Path, key: Path) -> None:
    """Raise RequestError, which names the file at fault, for a certificate or key that cannot be used."""
    for option, path in (("--tls-cert", certificate), ("--tls-key", key)):
        try:
            path.open("rb").close()
        except OSError as reason:
            raise RequestError(f"{option} {str(path)!r} cannot be read: {reason.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError):
        raise RequestError(f"--tls-cert {str(certificate)!r} does not hold a certificate in PEM form") from None
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as reason:
        if reason.reason == "KEY_VALUES_MISMATCH":
            message = f"--tls-key {str(key)!r} is not the key of --tls-cert {str(certificate)!r}"
        else:
            message = f"--tls-key {str(key)!r} does not hold a key in PEM form: {reason.reason or reason}"
        raise RequestError(message) from None


def startup_lines(config: ServeConfig, listener: socket.socket) -> list[str]:
    """Return which models are served at which addresses, and a warning where others than this machine's users can
    connect without a key."""
    names = ", ".join(spec.name for spec in config.models)
    line = f"serving {names} {addresses_text(config, listener)} (Ctrl-C ends)"
    if config.adapters:
        titles = [each.resolved_name for each in config.adapters]
        line += f"; {config.models[0].name} with the adapter {titles[0]}"
        line += f", or {', '.join(titles[1:])} where requests name it" if titles[1:] else ""
    return [line] if config.keys or config.is_loopback else [line, NO_KEY_WARNING]


def addresses_text(config: ServeConfig, listener: socket.socket) -> str:
    """Return the addresses of the server that a browser can open."""
    scheme = "https" if config.tls_cert else "http"
    port = listener.getsockname()[1]
    if not config.is_wildcard:
        host = f"[{config.host}]" if ":" in config.host else config.host
        return f"at {scheme}://{host}:{port}"
    names = ["localhost"]
    if (own := socket.gethostname().lower()) and (not config.allowed_hosts or own in config.allowed_hosts):
        names.append(own)
    return f"on all addresses, port {port}: " + ", ".join(f"{scheme}://{name}:{port}" for name in dict.fromkeys(names))
