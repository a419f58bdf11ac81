"""API keys: how they are written, found, and kept apart."""

from pathlib import Path

import pytest

from sporelm.errors import RequestError
from sporelm.serve.http.api_keys import ANONYMOUS, ApiKey, ApiKeys, read_api_keys


def test_a_key_is_found_by_its_secret_only() -> None:
    keys = ApiKeys([ApiKey.parse("anna:one"), ApiKey.parse("two")])
    assert keys.find("one") == ApiKey.parse("anna:one")
    assert keys.find("two").owner.startswith("key-")  # type: ignore[union-attr]
    for wrong in ("anna:one", "anna", "on", "one ", "", None, "\udcff"):
        assert keys.find(wrong) is None


def test_without_keys_requests_are_anonymous() -> None:
    assert ApiKeys().find(None) is ANONYMOUS
    assert not ApiKeys()


def test_each_secret_has_its_own_constant_cache_salt() -> None:
    one, other = ApiKey.parse("a:first"), ApiKey.parse("b:second")
    assert one.cache_salt != other.cache_salt
    assert one.cache_salt == ApiKey.parse("c:first").cache_salt
    assert "first" not in repr(one)
    assert one.cache_salt not in repr(one)


@pytest.mark.parametrize("text", ["", "a:", ":a", "a b", "name with space:x", "-x:y", "é", "a" * 513])
def test_an_invalid_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(RequestError, match="SECRET or NAME:SECRET") as told:
        ApiKey.parse(text)
    assert len(text) < 3 or text not in str(told.value)


def test_duplicate_keys_are_refused() -> None:
    with pytest.raises(RequestError, match="same name"):
        ApiKeys([ApiKey.parse("a:1"), ApiKey.parse("a:2")])
    with pytest.raises(RequestError, match="same secret"):
        ApiKeys([ApiKey.parse("a:1"), ApiKey.parse("b:1")])


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nanna:one\n\n  two  \n")
    assert [key.owner for key in read_api_keys(path)] == ["anna", ApiKey.parse("two").owner]
    path.write_text("\ufeffanna:one\n", encoding="utf-8")
    assert [key.owner for key in read_api_keys(path)] == ["anna"], "some editors put a mark of byte order before a text"
    path.write_text("anna:one\nno good key\n")
    with pytest.raises(RequestError, match="line 2: an API key is") as told:
        read_api_keys(path)
    assert "no good" not in str(told.value)
    path.write_text("# none\n")
    with pytest.raises(RequestError, match="has 0 API keys"):
        read_api_keys(path)
