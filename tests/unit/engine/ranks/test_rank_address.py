"""Addresses of ranks: public ones are refused unless they are allowed."""

import pytest

from sporelm.engine.ranks.rank_address import RankAddress, check_private
from sporelm.errors import RequestError


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:7000", "host.example:1", "unix:/run/x"])
def test_addresses_are_parsed(text: str) -> None:
    assert str(RankAddress.parse(text)) == text


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:x", "host:70000", "unix:", "unix:" + "x" * 200])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(RequestError):
        RankAddress.parse(text)


@pytest.mark.parametrize("number", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "fe80::1%eth0",
                                    "fd00::1", "100.64.0.1", "169.254.1.1"])  # fmt: skip
def test_private_addresses_are_allowed(number: str) -> None:
    check_private(number, number, allow_public=False)


@pytest.mark.parametrize("number", ["8.8.8.8", "2001:4860:4860::8888", "0.0.0.0", "::"])
def test_public_addresses_are_refused(number: str) -> None:
    with pytest.raises(RequestError, match="allow_public_address"):
        check_private(number, number, allow_public=False)
    check_private(number, number, allow_public=True)
