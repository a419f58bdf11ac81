"""Addresses at which ranks meet: the listener, the options and gloo have one rule."""

import pytest

from sporelm.api.parallel_options import ParallelOptions
from sporelm.distributed.private_address import check_private
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.ranks.transport import RankListener
from sporelm.errors import RequestError

PUBLIC = ["8.8.8.8", "2001:4860:4860::8888", "0.0.0.0", "::", "224.0.0.1", "100.128.0.1"]


@pytest.mark.parametrize("number", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "fe80::1%eth0",
                                    "fd00::1", "100.64.0.1", "169.254.1.1"])  # fmt: skip
def test_private_addresses_are_allowed(number: str) -> None:
    check_private(number, number)


@pytest.mark.parametrize("number", [*PUBLIC, "example.org", ""])
def test_public_addresses_and_names_are_refused(number: str) -> None:
    with pytest.raises(RequestError, match=r"all interfaces|public|not an IP address"):
        check_private(number, number)


@pytest.mark.parametrize("number", PUBLIC)
def test_options_and_listener_refuse_them_before_a_worker_joins(number: str) -> None:
    address = RankAddress(number, 7000)
    with pytest.raises(RequestError, match=r"all interfaces|public"):
        ParallelOptions(tp=2, remote_ranks=1, rank_listen=str(address), rank_token_file="token").check()
    with pytest.raises(RequestError, match=r"all interfaces|public"):
        RankListener(address, "t" * 40)


@pytest.mark.parametrize("number", PUBLIC)
def test_gloo_refuses_them(number: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from sporelm.distributed.torch import Rendezvous, TorchGroup

    with pytest.raises(RequestError, match=r"all interfaces|public"):
        TorchGroup.connect_gloo(Rendezvous(), 0, 2, number)
