"""`spore serve` as users start it: in a process of its own, its mistakes told in one line."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from system.processes import Spore, command, environment, one_line


def test_a_server_from_start_to_end(chatty: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna:secret\n")
    words = ("serve", f"story={chatty}", "--port", 0, "--api-keys-file", keys, "--threads", 1, "--log", "json")
    with subprocess.Popen(command(*words), env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if line.startswith("spore: serving"))
            found = re.search(r"serving story at (http://127\.0\.0\.1:\d+) ", line)
            assert found, line
            with httpx.Client(base_url=found[1], trust_env=False, timeout=60) as client:
                assert client.get("/health").json()["status"] == "ok"
                assert client.get("/v1/models").status_code == 401
                asked = {"prompt": "Lily", "max_tokens": 3}
                made = client.post("/v1/completions", json=asked, headers={"x-api-key": "secret"})
                assert made.json()["usage"]["completion_tokens"] == 3
                page = client.get("/", headers={"x-api-key": "secret"})
                assert page.headers["content-type"].startswith("text/html")
            process.send_signal(signal.SIGTERM if sys.platform != "win32" else signal.SIGINT)
            rest = process.stderr.read()
            code = process.wait(60)
        finally:
            process.kill()
    assert "secret" not in rest
    assert "Traceback" not in rest
    assert code in (0, 130, 143)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "70000"), "port is 70000: it must be from 0 to 65535"),
        (("--model", "a b=x"), "a model's name is 'a b'"),
        (("--api-key", "a b"), "an API key is SECRET or NAME:SECRET"),
        (("--tls-cert", "x.pem"), "TLS needs both files"),
        (("--cors-origin", "*"), "a CORS origin is"),
        (("--config", "nowhere.toml"), "cannot be read"),
        (("--max-body", "lots"), "max_body is 'lots'"),
    ],
)
def test_wrong_options_are_one_line(spore: Spore, words: tuple[str, ...], said: str) -> None:
    done = spore("serve", "model.gguf", *words)
    assert done.returncode == 2
    assert said in one_line(done.stderr)


def test_what_cannot_be_served_is_one_line(spore: Spore, chatty: Path, tmp_path: Path) -> None:
    missing = spore("serve", tmp_path / "no.gguf", "--port", 0)
    assert missing.returncode == 1
    assert "no model at" in one_line(missing.stderr)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = spore("serve", chatty, "--port", port)
    assert refused.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be had" in one_line(refused.stderr)
    host = spore("serve", chatty, "--host", "no-such-host.invalid")
    assert host.returncode == 1
    assert "is none of this machine's" in one_line(host.stderr)
    tls = tmp_path / "cert.pem"
    tls.write_text("no certificate")
    broken = spore("serve", chatty, "--port", 0, "--tls-cert", tls, "--tls-key", tls)
    assert broken.returncode == 1
    assert "TLS with" in one_line(broken.stderr)
