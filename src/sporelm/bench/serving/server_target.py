"""The address of a measured server, and the heads of requests to it."""

import ssl
from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True)
class ServerTarget:
    """A server's address: `origin` (such as http://127.0.0.1:8000) for display, and its parts for connections.

    `base` is the path before the names of endpoints, such as /v1; `key` stands in each request and is never shown.
    """

    scheme: str
    host: str
    port: int
    origin: str
    base: str = "/v1"
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """The address for display."""
        return f"{self.origin}{self.base}"

    def request(self, name: str, body: dict[str, Any] | None = None) -> bytes:
        """The bytes of a request to an endpoint: POST with a body, GET without."""
        data = b"" if body is None else msgspec.json.encode(body)
        host = self.origin.partition("://")[2]
        lines = [f"{'GET' if body is None else 'POST'} {self.base}{name} HTTP/1.1", f"host: {host}"]
        lines += ["accept: application/json, text/event-stream", "user-agent: spore-bench"]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        return "\r\n".join([*lines, "", ""]).encode("ascii") + data

    def tls(self) -> ssl.SSLContext | None:
        """For https: certificates are checked, SSL_CERT_FILE may name more that are trusted."""
        return ssl.create_default_context() if self.scheme == "https" else None
