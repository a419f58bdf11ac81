"""`spore serve` as users start it: in a process of its own, its mistakes told in one line."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sporelm.cli.main import main
from sporelm.cli.serve import check_models
from sporelm.errors import RequestError
from sporelm.serve.serve_config import ModelSpec, ServeConfig
from sporelm.serve.uvicorn_runner import check_tls, open_socket
from system.processes import Spore, command, environment, one_line


def test_a_server_from_start_to_end(chatty: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("anna:secret\n")
    words = ("serve", f"story={chatty}", "--port", 0, "--api-keys-file", keys, "--threads", 1, "--log", "json")
    with subprocess.Popen(command(*words), env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = next(line for line in process.stderr if "serving" in line)
            found = re.search(r"serving story at (http://127\.0\.0\.1:\d+) ", json.loads(line)["message"])
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
        (("--config", "nowhere.toml"), "spore: the configuration 'nowhere.toml' cannot be read"),
        (("--model", "a="), "the model 'a' has no file or name"),
        (("--model", "a=x", "--model", "a=x"), "two models have the name 'a': give each one its own name"),
        (("--allowed-host", "http://x/y"), "an allowed host is 'http://x/y': give a name alone"),
        (("--max-body", "lots"), "max_body is 'lots'"),
    ],
)
def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert main(["serve", "model.gguf", *words]) == 2
    assert said in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("limit", "said"),
    [("1M", r"its weights take 2\.6 MB, and model_memory is 1\.0 MB\. Raise --model-memory"),
     ("3M", r"story takes \d+\.\d MB, including .* for keys and values: model_memory is 3\.0 MB; give a smaller --kv")],
)  # fmt: skip
def test_a_limit_below_the_first_model_is_refused(spore: Spore, chatty: Path, limit: str, said: str) -> None:
    done = spore("serve", f"story={chatty}", "--port", "0", "--threads", "1", "--model-memory", limit)
    assert done.returncode == 1
    assert re.search(said, one_line(done.stderr)), done.stderr


def test_a_missing_model_is_one_line(spore: Spore, tmp_path: Path) -> None:
    missing = spore("serve", tmp_path / "no.gguf", "--port", 0)
    assert missing.returncode == 1
    assert "no model at" in one_line(missing.stderr)


@pytest.mark.parametrize("missing", ["nope", "nope.gguf", "folder/nope"])
def test_a_further_missing_model_is_refused_as_by_run(
    capsys: pytest.CaptureFixture[str], chatty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", missing, "-p", "Hi"]) == 1
    of_run = one_line(capsys.readouterr().err)
    assert "no model" in of_run
    assert main(["serve", f"story={chatty}", "--model", f"a={missing}", "--port", "0"]) == 1
    assert one_line(capsys.readouterr().err) == of_run


def test_models_that_can_be_fetched_are_not_looked_for_at_the_start() -> None:
    specs = ModelSpec("a", "no.gguf"), ModelSpec("b", "hf:unknown/nothing"), ModelSpec("c", "smollm2")
    check_models(ServeConfig(models=specs))


def test_unusable_addresses_and_certificates_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=f"cannot bind port {port} of 127.0.0.1"):
            open_socket(ServeConfig(port=port))
    with pytest.raises(RequestError, match=r"cannot listen on 'no-such-host.invalid': .*; choose another .*--host"):
        open_socket(ServeConfig(host="no-such-host.invalid"))
    with pytest.raises(
        RequestError, match=r"cannot listen on '192.0.2.1': it is not an address of this machine; .*--host"
    ):
        open_socket(ServeConfig(host="192.0.2.1", port=port))  # of RFC 5737, which no machine has
    tls = tmp_path / "cert.pem"
    tls.write_text("no certificate")
    with pytest.raises(RequestError, match=r"--tls-cert '.*cert\.pem' does not hold a certificate"):
        open_socket(ServeConfig(port=0, tls_cert=tls, tls_key=tls))
    with pytest.raises(RequestError, match=r"--tls-key '.*no\.pem' cannot be read: No such file"):
        open_socket(ServeConfig(port=0, tls_cert=tls, tls_key=tmp_path / "no.pem"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed")
def test_an_invalid_or_foreign_tls_key_is_named(tmp_path: Path) -> None:
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"]
    for name in ("one", "other"):
        words = ["openssl", "req", "-x509", *kind, "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(words, check=True, capture_output=True, cwd=tmp_path)
    certificate, key = tmp_path / "one.pem", tmp_path / "one.key"
    check_tls(certificate, key)
    with pytest.raises(RequestError, match=r"--tls-key '.*other\.key' is not the key of --tls-cert '.*one\.pem'"):
        check_tls(certificate, tmp_path / "other.key")
    with pytest.raises(RequestError, match=r"--tls-key '.*other\.pem' does not hold a key in PEM form"):
        check_tls(certificate, tmp_path / "other.pem")
