"""Access control: the Host and Origin of a request, and its API key."""

import base64
import binascii
from collections.abc import Mapping
from urllib.parse import urlsplit

from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.api_keys import ANONYMOUS, ApiKey, ApiKeys
from sporelm.serve.serve_config import ServeConfig
from sporelm.serve.webui import FOLDER, MEDIA_TYPES, without_version

HEALTH = "/health"
KEYLESS_PATHS = (HEALTH, f"/v1{HEALTH}")  # health checks send no key
# The web chat's files, by their exact paths: they are the same for all users and hold no secret.
PUBLIC_FILES = frozenset(
    (
        "/",
        *(f"/webui/{each.relative_to(FOLDER).as_posix()}" for each in FOLDER.rglob("*") if each.suffix in MEDIA_TYPES),
    )
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


class AccessControl:
    """Checks the Host, the Origin and the API key of requests."""

    def __init__(self, config: ServeConfig) -> None:
        self.keys = ApiKeys(config.keys)
        self.hosts: frozenset[str] = frozenset(name.lower() for name in config.allowed_hosts)
        if self.hosts or config.is_loopback:
            self.hosts |= {*LOOPBACK_NAMES, config.host.lower()}
        self.origins = frozenset(config.cors_origins)

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> ApiKey:
        """Return the key of a request. Raises ApiError: 403 for a foreign Host or Origin, 401 for a missing or unknown
        key."""
        self.check_origin(headers)
        key = self.keys.find(secret_of(headers))
        if key is not None:
            return key
        if is_public(method, path):
            return ANONYMOUS
        raise unauthorized(method, headers)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise ApiError for a Host that is not this server's, which a page of another site gets by DNS rebinding, and
        for an Origin that is neither this server's nor allowed."""
        host = headers.get("host", "")
        if self.hosts and host_name(host) not in self.hosts:
            raise ApiError(
                403,
                f"Host {host[:100]!r} is not a name of this server: use {', '.join(sorted(self.hosts))}, or allow it "
                "with --allowed-host",
                "permission_error",
                "host_not_allowed",
            )
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return
        try:
            origin_host = urlsplit(origin).netloc.lower()
        except ValueError:
            origin_host = ""
        if not origin_host or origin_host != host.lower():
            raise ApiError(
                403,
                f"Origin {origin[:100]!r} is not allowed: allow its pages with --cors-origin",
                "permission_error",
                "origin_not_allowed",
            )


def is_public(method: str, path: str) -> bool:
    """Return whether no key is needed: for /health and /v1/health, and for reading the web chat's files, whose page
    asks for the key itself."""
    return path in KEYLESS_PATHS or (method in ("GET", "HEAD") and without_version(path) in PUBLIC_FILES)


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port: "[::1]:8000" is "::1"."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def secret_of(headers: Mapping[str, str]) -> str | None:
    """Return the secret that a request carries: as Bearer token, as Basic password, or in x-api-key."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer" and value:
        return value
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers.get("x-api-key") or None


def unauthorized(method: str, headers: Mapping[str, str]) -> ApiError:
    """Return the 401 that asks for a key. A browser that loads a page is asked to open its password dialog."""
    is_page = method == "GET" and "text/html" in headers.get("accept", "")
    challenge = 'Basic realm="sporelm: the API key is the password", charset="UTF-8"' if is_page else "Bearer"
    has_secret = secret_of(headers) is not None
    return ApiError(
        401,
        "the API key is not valid for this server" if has_secret else "API key missing: send Authorization: Bearer KEY",
        "authentication_error",
        "invalid_api_key",
        {"www-authenticate": challenge},
    )
