"""API keys: their names, and the hashes of their secrets."""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from sporelm.errors import RequestError, safe_repr
from sporelm.files.text_file import read_text_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SECRET = re.compile(r"[!-~]{1,512}")
MAX_KEYS = 10_000
MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True)
class ApiKey:
    """An API key. Only a hash of its secret is kept.

    owner       its name: in logs, for fair queueing, and as the owner of sessions and conversations
    cache_salt  separates the key's prefix cache from that of other keys
    """

    owner: str
    digest: bytes = field(repr=False)
    cache_salt: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "ApiKey":
        """Parse SECRET or NAME:SECRET. Raises RequestError, which does not show the secret."""
        name, colon, secret = text.partition(":")
        if not colon:
            name, secret = "", text
        if (colon and NAME.fullmatch(name) is None) or SECRET.fullmatch(secret) is None:
            raise RequestError(
                "an API key is SECRET or NAME:SECRET: the name of letters, digits and ._@-, 64 at most; the secret of "
                "1 to 512 visible ASCII characters without spaces"
            )
        digest = sha256(secret.encode()).hexdigest()
        cache_salt = sha256(b"sporelm salt " + secret.encode()).hexdigest()[:32]
        return cls(name or f"key-{digest[:12]}", bytes.fromhex(digest), cache_salt)


ANONYMOUS = ApiKey("", b"", "")  # the key of requests without one, where none is needed


class ApiKeys:
    """All keys of a server. Without any, every request is accepted as anonymous."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises RequestError for two keys with the same name or the same secret."""
        self._keys = tuple(keys)
        for attribute, name in (("owner", "name"), ("digest", "secret")):
            values = [getattr(key, attribute) for key in self._keys]
            if len(set(values)) < len(values):
                raise RequestError(f"two API keys have the same {name}: remove one")

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: str | None) -> ApiKey | None:
        """Return the key with this secret, or None. Without any keys, return ANONYMOUS.

        The secret is compared with all keys, each in constant time, so that timing reveals nothing.
        """
        if not self._keys:
            return ANONYMOUS
        digest = sha256((secret or "").encode("utf-8", "surrogateescape")).digest()
        match: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match if secret else None


def read_api_keys(path: Path) -> list[ApiKey]:
    """Read a file of keys: one a line, SECRET or NAME:SECRET; lines that begin with # are comments.

    Raises RequestError for a file that cannot be read, or has no key or an invalid one.
    """
    lines = read_text_file(path, "the file of API keys", MAX_FILE_BYTES).removeprefix("\ufeff").splitlines()
    keys = []
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            try:
                keys.append(ApiKey.parse(entry))
            except RequestError as reason:
                raise RequestError(f"{safe_repr(str(path), 200)}, line {number}: {reason}") from None
    if not 1 <= len(keys) <= MAX_KEYS:
        raise RequestError(f"{safe_repr(str(path), 200)} has {len(keys)} API keys: give 1 to {MAX_KEYS}")
    return keys
