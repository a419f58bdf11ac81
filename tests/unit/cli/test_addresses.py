"""Where a server is and with which key it is asked, for `spore chat --url` and `spore bench serve` alike."""

import pytest

from sporelm import settings
from sporelm.cli import bench_serve
from sporelm.cli.remote.api_key_option import check_key, resolve_key
from sporelm.cli.remote.server_address import ServerAddress
from sporelm.errors import UsageError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"),
        ("http://localhost:80/v1/", "http://localhost/v1"),
        ("HTTPS://Host.Example/v1", "https://host.example/v1"),
        ("https://host/api/openai", "https://host/api/openai"),
        ("https://host/v1/chat/completions", "https://host/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_addresses(text: str, shown: str) -> None:
    assert str(ServerAddress.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        *["", "host", "host:8000", "ftp://host", "http://", "http://host:99999", "http://host:x", "http://[::1"],
        *[
            "http://host/?a=b",
            "http://host/#x",
            "http://ho st",
            "http://host/\x1b[2J",
            "http://hôst",
            "http://user@host",
        ],
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerAddress.parse(text)
    assert str(caught.value).isprintable()


def test_what_people_copy_along_is_told_apart() -> None:
    with pytest.raises(UsageError, match="give the key with --api-key"):
        ServerAddress.parse("http://user:word@host")
    with pytest.raises(UsageError, match="is not supported"):
        ServerAddress.parse("http://host/v1?x=1")


@pytest.mark.parametrize("key", ["two words", "", "new\nline", "a\r\nb: c", "é", "x" * 5000])
def test_keys_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(UsageError, match="the API key has invalid characters") as caught:
        check_key(key)
    assert key.strip() == "" or key not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "kept", "key"),
    [
        (None, "", None),
        (None, "s3cret", "s3cret"),
        (None, "ann:s3:cret", "ann:s3:cret"),  # it is sent as it is: another server's key may have a colon
        ("a:b", "other", "a:b"),
        ("", "other", "other"),
    ],
)
def test_keys(monkeypatch: pytest.MonkeyPatch, given: str | None, kept: str, key: str | None) -> None:
    monkeypatch.setitem(vars(settings.API_KEY), "value", kept)
    assert resolve_key(given) == key
    words = ["--url", "https://[::1]:8443/v1/chat/completions", *([] if given is None else ["--api-key", given])]
    target = bench_serve.make_plan(bench_serve.make_parser().parse_args(words)).target
    assert (target.key, target.url, target.port) == (key or "", "https://[::1]:8443/v1", 8443)
    assert "s3" not in repr(target)
    assert b"\r\nhost: [::1]:8443\r\n" in target.request("/models")


def test_a_command_line_is_kept_without_its_key() -> None:
    words = ["--api-key", "sesame", "-c", "1", "--api-key=sesame", "--api-key"]
    assert bench_serve.hide_secrets(words) == ["--api-key", "KEY", "-c", "1", "--api-key=KEY", "--api-key"]
