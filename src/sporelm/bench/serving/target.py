"""Where a server is: an address taken apart, and the heads of requests to it."""

import re
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sporelm.errors import UsageError, shown

PORTS = {"http": 80, "https": 443}
SECRET = re.compile(r"[!-~]{1,4096}")


@dataclass(frozen=True)
class Target:
    """A server's address. `base` is the path before the names of endpoints, such as /v1; `key` is never shown."""

    scheme: str
    host: str
    port: int
    base: str
    key: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str, key: str = "") -> "Target":
        """From http://HOST[:PORT][/PATH]; without a path it is /v1, as with OpenAI's clients. Raises UsageError."""
        asked = "give http://HOST:PORT, or https://"
        if re.fullmatch(r"[!-~]{1,2048}", url) is None:
            raise UsageError(f"--url is {shown(url)}: {asked}, in visible ASCII characters")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as reason:
            raise UsageError(f"--url is {shown(url)}: {reason}; {asked}") from None
        if "@" in parts.netloc:
            raise UsageError("--url has a user or a password in it: give a key with --api-key, or SPORE_API_KEY")
        if parts.scheme not in PORTS or not parts.hostname:
            raise UsageError(f"--url is {shown(url)}: {asked}")
        if parts.query or parts.fragment:
            raise UsageError(f"--url is {shown(url)}: it has more than a path; {asked}")
        if key and SECRET.fullmatch(key) is None:
            raise UsageError("the API key has characters that no key has: give visible ASCII characters, 4096 at most")
        base = parts.path.rstrip("/") or "/v1"
        return cls(parts.scheme, parts.hostname, PORTS[parts.scheme] if port is None else port, base, key)

    @property
    def url(self) -> str:
        """The address as people write it."""
        return f"{self.scheme}://{self.authority}{self.base}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def request(self, name: str, body: dict[str, Any] | None = None) -> bytes:
        """The bytes of a request to an endpoint: POST with a body, GET without."""
        data = b"" if body is None else msgspec.json.encode(body)
        lines = [f"{'GET' if body is None else 'POST'} {self.base}{name} HTTP/1.1", f"host: {self.authority}"]
        lines += ["accept: application/json, text/event-stream", "user-agent: spore-bench"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + data

    def tls(self) -> ssl.SSLContext | None:
        """For https: certificates are checked, SSL_CERT_FILE may name more that are trusted."""
        return ssl.create_default_context() if self.scheme == "https" else None
