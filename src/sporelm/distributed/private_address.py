"""The rule for addresses at which ranks meet: other networks must not reach them."""

from ipaddress import IPv4Network, ip_address

from sporelm.errors import RequestError

SHARED_ADDRESSES = IPv4Network("100.64.0.0/10")  # of carriers and overlay networks (RFC 6598), not routed publicly


def check_private(number: str, name: str) -> None:
    """Raise RequestError unless an IP address is a loopback or private one.

    Activations go over gloo, which has neither authentication nor encryption, so no option allows a public address.

    name   of the address in the error
    """
    try:
        address = ip_address(number.partition("%")[0])
    except ValueError:
        raise RequestError(
            f"address {name}: not an IP address (got {number!r:.60}; allowed one of this host, such as 10.0.0.2). Name "
            "the private interface by its address."
        ) from None
    if address.is_unspecified:
        raise RequestError(
            f"address {name}: stands for all interfaces, the public ones too. Name a loopback or private address."
        )
    is_shared = address.version == 4 and address in SHARED_ADDRESSES
    if address.is_multicast or not (address.is_private or address.is_loopback or address.is_link_local or is_shared):
        raise RequestError(
            f"address {name}: public (got {number}; allowed loopback and private addresses): activations between hosts "
            "are neither authenticated nor encrypted. Use a private network or a VPN between the hosts."
        )
