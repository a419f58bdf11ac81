"""Addresses of ranks, HOST:PORT or unix:PATH."""

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from sporelm.distributed.private_address import check_private
from sporelm.errors import RequestError, safe_repr

UNIX_PREFIX = "unix:"
MAX_UNIX_PATH = 100  # bytes; systems allow 104 or 108


@dataclass(frozen=True)
class RankAddress:
    """A TCP address, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "RankAddress":
        """Parse HOST:PORT, [IPV6]:PORT or unix:PATH. Raises RequestError."""
        if text.startswith(UNIX_PREFIX):
            return cls.of_path(text.removeprefix(UNIX_PREFIX))
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise RequestError(
                f"address: not valid (got {safe_repr(text, 100)}; allowed HOST:PORT, such as 10.0.0.1:7000, or "
                "unix:PATH). Correct it."
            )
        return cls(host, int(port))

    @classmethod
    def of_path(cls, path: str | Path) -> "RankAddress":
        """Return the address of a unix socket. Raises RequestError for a path that systems do not allow."""
        if not 0 < len(str(path).encode()) <= MAX_UNIX_PATH:
            raise RequestError(f"address: path too long for a unix socket (allowed {MAX_UNIX_PATH} bytes). Shorten it.")
        return cls(path=str(path))

    def __str__(self) -> str:
        if self.path:
            return f"{UNIX_PREFIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def resolved_host(self) -> str:
        """The IP address; "" for a unix socket."""
        _, place = self.resolve(allow_public=True)
        return "" if isinstance(place, str) else place[0]

    @property
    def is_local(self) -> bool:
        """Whether only processes of this host can connect."""
        host = self.resolved_host
        return not host or ip_address(host.partition("%")[0]).is_loopback

    def resolve(self, *, allow_public: bool = False) -> tuple[socket.AddressFamily, tuple[str, int] | str]:
        """Return the family and the address for `socket`. Raises RequestError for a name that cannot be resolved, for
        a public address, and for the one that stands for all interfaces."""
        if self.path:
            return socket.AF_UNIX, self.path
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError as reason:
            raise RequestError(f"address {self}: cannot be resolved ({reason.strerror}). Correct it.") from None
        family, _, _, _, place = found[0]
        number = str(place[0])
        if not allow_public:
            check_private(number, str(self))
        return socket.AddressFamily(family), (number, self.port)
