"""The API key that a server is asked with: as it was given, or as the environment has it."""

import re

from sporelm import settings
from sporelm.errors import UsageError

SECRET = re.compile(r"[!-~]{1,4096}")


def key_of(given: str | None) -> str | None:
    """The key of --api-key, else that of SPORE_API_KEY, else None. Raises UsageError for one that is none."""
    key = given or key_of_environment()
    return None if key is None else checked(key)


def key_of_environment() -> str | None:
    """The secret of SPORE_API_KEY, which may have a name before it, as a server of ours has it."""
    _, colon, secret = settings.API_KEY.value.partition(":")
    return (secret if colon else settings.API_KEY.value) or None


def checked(key: str) -> str:
    """A key that a header can hold. Raises UsageError, which does not show it."""
    if SECRET.fullmatch(key) is None:
        raise UsageError("the API key has characters that no key has: give visible ASCII characters, 4096 at most")
    return key
