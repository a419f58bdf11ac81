"""Addresses of ranks, and what workers may be told to connect to."""

import pytest

from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.errors import RequestError


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:7000", "host.example:1", "unix:/run/x"])
def test_addresses_are_parsed(text: str) -> None:
    assert str(RankAddress.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:x", "host:70000", "unix:", "unix:" + "x" * 200])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        RankAddress.parse(text)


def test_public_addresses_are_refused_unless_a_worker_may_connect_to_them() -> None:
    address = RankAddress.parse("8.8.8.8:7000")
    with pytest.raises(RequestError, match=r"public \(got 8.8.8.8"):
        address.resolve()
    assert address.resolve(allow_public=True)[1] == ("8.8.8.8", 7000)
