"""The address of an OpenAI-compatible server, as people write it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from sporelm.errors import UsageError, shown

PORTS = {"http": 80, "https": 443}
ANSWERS = "/chat/completions"  # often copied along with the address


@dataclass(frozen=True)
class Address:
    """Where a server is asked: `path` stands before `/chat/completions` and `/models`."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, text: str) -> "Address":
        """An address from its text; without a path it gets `/v1`, any other is taken as it is. Raises UsageError."""
        what = f"--url is {shown(text, 200)}: "
        example = "write it as http://127.0.0.1:8000 or https://host/v1"
        if not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(f"{what}an address has visible ASCII characters only; {example}")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as reason:
            raise UsageError(f"{what}{reason}; {example}") from None
        if "@" in parts.netloc:  # not shown: it may be a password
            raise UsageError("--url has a user or a password in it: give the key with --api-key or SPORE_API_KEY")
        if parts.scheme not in PORTS or not parts.hostname:
            raise UsageError(f"{what}{example}")
        if parts.query or parts.fragment:
            raise UsageError(f"{what}what stands after '?' or '#' cannot be used; {example}")
        path = parts.path.rstrip("/").removesuffix(ANSWERS)
        return cls(parts.scheme, parts.hostname, PORTS[parts.scheme] if port is None else port, path or "/v1")

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        """Scheme, host and port; the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == PORTS[self.scheme] else f":{self.port}")

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine: no proxy stands before it."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
