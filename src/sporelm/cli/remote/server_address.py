"""The address of an OpenAI-compatible server, parsed from --url."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from sporelm.errors import UsageError, safe_repr

DEFAULT_PORTS = {"http": 80, "https": 443}
CHAT_PATH = "/chat/completions"  # often copied along with the address


@dataclass(frozen=True)
class ServerAddress:
    """The base address of a server; `path` precedes `/chat/completions` and `/models`."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> "ServerAddress":
        """Parse an address. Without a path it gets `/v1`; any other path is kept. Raises UsageError."""
        subject = f"--url is {safe_repr(text, 200)}: "
        example = "write it as http://127.0.0.1:8000 or https://host/v1"
        if not text.isascii() or not text.isprintable() or " " in text:
            raise UsageError(f"{subject}an address has visible ASCII characters only; {example}")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as reason:
            raise UsageError(f"{subject}{reason}; {example}") from None
        if "@" in parts.netloc:  # not shown: it may contain a password
            raise UsageError("--url contains a user or a password: give the key with --api-key or SPORE_API_KEY")
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            raise UsageError(f"{subject}{example}")
        if parts.query or parts.fragment:
            raise UsageError(f"{subject}the part after '?' or '#' is not supported; {example}")
        path = parts.path.rstrip("/").removesuffix(CHAT_PATH)
        return cls(parts.scheme, parts.hostname, DEFAULT_PORTS[parts.scheme] if port is None else port, path or "/v1")

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        """Scheme, host and port; the scheme's default port is left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}")

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, so that no proxy is used."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
