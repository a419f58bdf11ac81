"""API keys: how they are written, found, and kept apart."""

from pathlib import Path

import pytest

from sporelm.errors import RequestError
from sporelm.serve.keys import ANYBODY, ApiKey, Keys, read_keys


def test_a_key_is_found_by_its_secret_alone() -> None:
    keys = Keys([ApiKey.of("anna:one"), ApiKey.of("two")])
    assert keys.find("one") == ApiKey.of("anna:one")
    assert keys.find("two").owner.startswith("key-")  # type: ignore[union-attr]
    for wrong in ("anna:one", "anna", "on", "one ", "", None, "\udcff"):
        assert keys.find(wrong) is None


def test_without_keys_everybody_may_ask() -> None:
    assert Keys().find(None) is ANYBODY
    assert not Keys()


def test_each_key_has_a_salt_of_its_own_that_stays() -> None:
    one, other = ApiKey.of("a:first"), ApiKey.of("b:second")
    assert one.salt != other.salt
    assert one.salt == ApiKey.of("c:first").salt
    assert "first" not in repr(one)
    assert one.salt not in repr(one)


@pytest.mark.parametrize("text", ["", "a:", ":a", "a b", "name with space:x", "-x:y", "é", "a" * 513])
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(RequestError, match="SECRET or NAME:SECRET") as told:
        ApiKey.of(text)
    assert len(text) < 3 or text not in str(told.value)


def test_two_keys_alike_are_refused() -> None:
    with pytest.raises(RequestError, match="same name"):
        Keys([ApiKey.of("a:1"), ApiKey.of("a:2")])
    with pytest.raises(RequestError, match="same secret"):
        Keys([ApiKey.of("a:1"), ApiKey.of("b:1")])


def test_a_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nanna:one\n\n  two  \n")
    assert [key.owner for key in read_keys(path)] == ["anna", ApiKey.of("two").owner]
    path.write_text("\ufeffanna:one\n", encoding="utf-8")
    assert [key.owner for key in read_keys(path)] == ["anna"], "some editors put a mark of byte order before a text"
    path.write_text("anna:one\nno good key\n")
    with pytest.raises(RequestError, match="line 2: an API key is") as told:
        read_keys(path)
    assert "no good" not in str(told.value)
    path.write_text("# none\n")
    with pytest.raises(RequestError, match="has 0 API keys"):
        read_keys(path)
