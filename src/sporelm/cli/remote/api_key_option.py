"""The API key of a request: --api-key or SPORE_API_KEY, sent unchanged.

`spore serve` is given keys as NAME:SECRET, where SECRET is the key. Nothing is split here, because the key of another
server may contain a colon.
"""

import re

from sporelm import settings
from sporelm.errors import UsageError

VALID_KEY = re.compile(r"[!-~]{1,4096}")


def resolve_key(option: str | None) -> str | None:
    """Return the key of --api-key, else that of SPORE_API_KEY, else None. Raises UsageError for an invalid key."""
    key = option or settings.API_KEY.value
    return check_key(key) if key else None


def rejected_key_hint(key: str) -> str:
    """Return a hint for a rejected key, as the end of a sentence; empty unless the key contains a colon."""
    return "; for a key given to spore serve as NAME:SECRET, send only SECRET" if ":" in key else ""


def check_key(key: str) -> str:
    """Return the key if an HTTP header can hold it. Raises UsageError, which does not show it."""
    if VALID_KEY.fullmatch(key) is None:
        raise UsageError("the API key has invalid characters: give at most 4096 visible ASCII characters")
    return key
