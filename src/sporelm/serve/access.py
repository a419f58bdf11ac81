"""Who may ask: the Host and the Origin of a request, and its API key."""

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import urlsplit

from sporelm.serve.config import ServeConfig
from sporelm.serve.failures import Refusal
from sporelm.serve.keys import ApiKey, Keys
from sporelm.serve.webui import FOLDER, KINDS, unmarked

HEALTH = "/health"
KEYLESS = (HEALTH, f"/v1{HEALTH}")  # need no key: health checks have none
# The files of the web chat's page, each by its path: they are the same for everybody and hold no secret.
PAGE = frozenset(
    ("/", *(f"/webui/{each.relative_to(FOLDER).as_posix()}" for each in FOLDER.rglob("*") if each.suffix in KINDS))
)
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Access:
    """Checks what a request says of where it comes from and whose it is."""

    def __init__(self, config: ServeConfig) -> None:
        self.keys = Keys(config.keys)
        self.hosts: frozenset[str] = frozenset(name.lower() for name in config.allowed_hosts)
        if self.hosts or config.is_loopback:
            self.hosts |= {*LOOPBACK, config.host.lower()}
        self.origins = frozenset(config.cors_origins)

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> ApiKey:
        """Whose request this is. Raises Refusal: 403 for a foreign Host or Origin, 401 for a key that is none."""
        self.check_place(headers)
        key = self.keys.find(secret_of(headers))
        if key is None and is_open(method, path):
            return NOBODY
        if key is None:
            raise unauthorized(method, headers)
        return key

    def check_place(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal for a Host that is not ours: a page of another site whose name was made to point here (DNS
        rebinding); and for an Origin that is not: a page of another site that sends us requests."""
        host = headers.get("host", "")
        if self.hosts and host_name(host) not in self.hosts:
            raise Refusal(
                403,
                f"the Host {host[:100]!r} is not one of this server's names: ask for {', '.join(sorted(self.hosts))}, "
                "or allow it with --allowed-host",
                "permission_error",
                "host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            place = ""
        if not place or place != host.lower():
            raise Refusal(
                403,
                f"pages of {origin[:100]!r} may not ask this server: allow them with --cors-origin",
                "permission_error",
                "origin_not_allowed",
            )


NOBODY = ApiKey("", b"", "")


def is_open(method: str, path: str) -> bool:
    """Whether no key is needed: for /health and /v1/health, and to read the files of the web chat, whose page asks for
    the key itself. All else is closed."""
    return path in KEYLESS or (method in ("GET", "HEAD") and unmarked(path) in PAGE)


def host_name(host: str) -> str:
    """The name in a Host header, without the port: "[::1]:8000" is "::1"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def secret_of(headers: Mapping[str, str]) -> str | None:
    """The key that a request carries: as Bearer, as the password of Basic, or in x-api-key."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    value = value.strip()
    if kind.lower() == "bearer" and value:
        return value
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers.get("x-api-key") or None


def unauthorized(method: str, headers: Mapping[str, str]) -> Refusal:
    """Asks for a key; browsers, which are shown a page, by the dialog that they have for it."""
    for_page = method == "GET" and "text/html" in headers.get("accept", "")
    challenge = 'Basic realm="sporelm: the API key is the password", charset="UTF-8"' if for_page else "Bearer"
    given = secret_of(headers) is not None
    return Refusal(
        401,
        "the API key is not one of this server's" if given else "an API key is needed: Authorization: Bearer KEY",
        "authentication_error",
        "invalid_api_key",
        {"www-authenticate": challenge},
    )
