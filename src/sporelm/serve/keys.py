"""API keys: who may ask, and what each one's requests are kept apart by."""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from sporelm.errors import RequestError, shown
from sporelm.weights.text_file import read_text_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SECRET = re.compile(r"[!-~]{1,512}")
MOST_KEYS = 10_000
LONGEST_FILE = 4 << 20  # bytes


@dataclass(frozen=True)
class ApiKey:
    """One key. `owner` names it in logs, in the fairness of the queue and where things belong to it; `salt` keeps its
    prefixes apart from those of others; of the secret only a hash is kept."""

    owner: str
    digest: bytes = field(repr=False)
    salt: str = field(repr=False)

    @classmethod
    def of(cls, text: str) -> "ApiKey":
        """A key as people write it: SECRET, or NAME:SECRET. Raises RequestError, which does not show it."""
        name, colon, secret = text.partition(":")
        if not colon:
            name, secret = "", text
        if (colon and NAME.fullmatch(name) is None) or SECRET.fullmatch(secret) is None:
            raise RequestError(
                "an API key is SECRET or NAME:SECRET: the name of letters, digits and ._@-, 64 at most; the secret of "
                "1 to 512 visible ASCII characters without spaces"
            )
        told = sha256(secret.encode()).hexdigest()
        salt = sha256(b"sporelm salt " + secret.encode()).hexdigest()[:32]
        return cls(name or f"key-{told[:12]}", bytes.fromhex(told), salt)


ANYBODY = ApiKey("", b"", "")  # who asks where no keys are set


class Keys:
    """All keys of a server."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        """Raises RequestError for two keys of one name or one secret."""
        self._keys = tuple(keys)
        for what in ("owner", "digest"):
            seen = [getattr(key, what) for key in self._keys]
            if len(set(seen)) < len(seen):
                raise RequestError(f"two API keys have the same {'name' if what == 'owner' else 'secret'}: remove one")

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: str | None) -> ApiKey | None:
        """Whose secret this is; None for nobody's. Without any keys it is everybody's.

        All keys are compared, each in the same time, so that the time tells nothing.
        """
        if not self._keys:
            return ANYBODY
        digest = sha256((secret or "").encode("utf-8", "surrogateescape")).digest()
        found: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if secret else None


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file: one a line, SECRET or NAME:SECRET; lines that begin with # say nothing.

    Raises RequestError for a file that cannot be read, or has no key or a wrong one.
    """
    lines = read_text_file(path, "the file of API keys", LONGEST_FILE).removeprefix("\ufeff").splitlines()
    written = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = []
    for number, line in written:
        if line and not line.startswith("#"):
            try:
                found.append(ApiKey.of(line))
            except RequestError as reason:
                raise RequestError(f"{shown(str(path), 200)}, line {number}: {reason}") from None
    if not 1 <= len(found) <= MOST_KEYS:
        raise RequestError(f"{shown(str(path), 200)} has {len(found)} API keys: give 1 to {MOST_KEYS}")
    return found
