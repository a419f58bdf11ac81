"""What a server says of where it is and who may ask."""

import socket
from pathlib import Path

import pytest

from sporelm.serve.config import ServeConfig
from sporelm.serve.keys import ApiKey
from sporelm.serve.listening import OPEN_TO_ALL, place, words_at_start


@pytest.fixture
def listening() -> socket.socket:
    class Listening:
        def getsockname(self) -> tuple[str, int]:
            return "", 81

    return Listening()  # type: ignore[return-value]


def test_the_address_is_one_that_can_be_opened(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Host")
    assert place(ServeConfig(), listening) == "at http://127.0.0.1:81"
    assert place(ServeConfig(host="::1"), listening) == "at http://[::1]:81"
    everywhere = "on all addresses, port 81: http://localhost:81"
    assert place(ServeConfig(host="0.0.0.0"), listening) == f"{everywhere}, http://host:81"
    assert place(ServeConfig(host="::", allowed_hosts=("other",)), listening) == everywhere
    secure = ServeConfig(host="0.0.0.0", allowed_hosts=("host",), tls_cert=Path("a"), tls_key=Path("b"))
    assert place(secure, listening) == "on all addresses, port 81: https://localhost:81, https://host:81"


def test_a_server_that_others_reach_without_a_key_says_so(listening: socket.socket) -> None:
    assert words_at_start(ServeConfig(), listening) == ["serving smollm2 at http://127.0.0.1:81 (Ctrl-C ends)"]
    _, warning = words_at_start(ServeConfig(host="192.0.2.1"), listening)
    assert warning == OPEN_TO_ALL
    assert "--api-key" in warning
    assert len(words_at_start(ServeConfig(host="0.0.0.0", keys=(ApiKey.of("x"),)), listening)) == 1
