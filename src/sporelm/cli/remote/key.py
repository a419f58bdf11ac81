"""The API key that a server is asked with: --api-key, or SPORE_API_KEY, sent as it is.

Nothing is cut from either: of NAME:SECRET, as `spore serve` is told its keys, the secret alone is the key, but another
server's key may have a colon itself.
"""

import re

from sporelm import settings
from sporelm.errors import UsageError

SECRET = re.compile(r"[!-~]{1,4096}")


def key_of(given: str | None) -> str | None:
    """The key of --api-key, else that of SPORE_API_KEY, else None. Raises UsageError for one that is none."""
    key = given or settings.API_KEY.value
    return checked(key) if key else None


def hint_of(key: str) -> str:
    """What to try with a key that was refused, as the end of a sentence; nothing where it has no colon."""
    return "; of NAME:SECRET, as spore serve is told it, send SECRET alone" if ":" in key else ""


def checked(key: str) -> str:
    """A key that a header can hold. Raises UsageError, which does not show it."""
    if SECRET.fullmatch(key) is None:
        raise UsageError("the API key has characters that no key has: give visible ASCII characters, 4096 at most")
    return key
