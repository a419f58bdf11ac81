"""The startup lines of a server: its addresses, and a warning without keys."""

import socket
from pathlib import Path

import pytest

from sporelm.serve.http.api_keys import ApiKey
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.uvicorn_runner import NO_KEY_WARNING, addresses_text, startup_lines


@pytest.fixture
def listening() -> socket.socket:
    class Listening:
        def getsockname(self) -> tuple[str, int]:
            return "", 81

    return Listening()  # type: ignore[return-value]


def test_the_address_is_one_that_can_be_opened(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Host")
    assert addresses_text(ServeConfig(), listening) == "at http://127.0.0.1:81"
    assert addresses_text(ServeConfig(host="::1"), listening) == "at http://[::1]:81"
    everywhere = "on all addresses, port 81: http://localhost:81"
    assert addresses_text(ServeConfig(host="0.0.0.0"), listening) == f"{everywhere}, http://host:81"
    assert addresses_text(ServeConfig(host="::", allowed_hosts=("other",)), listening) == everywhere
    secure = ServeConfig(host="0.0.0.0", allowed_hosts=("host",), tls_cert=Path("a"), tls_key=Path("b"))
    assert addresses_text(secure, listening) == "on all addresses, port 81: https://localhost:81, https://host:81"


def test_a_server_that_others_reach_without_a_key_says_so(listening: socket.socket) -> None:
    assert startup_lines(ServeConfig(), listening) == ["serving smollm2 at http://127.0.0.1:81 (Ctrl-C ends)"]
    _, warning = startup_lines(ServeConfig(host="192.0.2.1"), listening)
    assert warning == NO_KEY_WARNING
    assert "--api-key" in warning
    assert len(startup_lines(ServeConfig(host="0.0.0.0", keys=(ApiKey.parse("x"),)), listening)) == 1
