"""Sizes of memory: parsed from text such as "2G", and formatted for messages."""

import re
from math import isfinite

from sporelm.errors import RequestError

_SIZE = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,15})?) ?(?P<unit>|[kKMGT]i?)B?")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
MAX_BYTES = 1 << 50


def size_in_bytes(name: str, size: int | str) -> int:
    """Return the bytes of "512M" or "2GB" (powers of 1000), "1.5GiB" or "2Gi" (powers of 1024), or of a number.

    Raises RequestError, which names `name`, for anything else, and for less than one byte or more than 2^50.
    """
    nbytes = 0
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        if found is not None:
            unit = found["unit"].upper()
            number = float(found["number"]) * (1024 if "I" in unit else 1000) ** _POWERS[unit.rstrip("I")]
            nbytes = int(number) if isfinite(number) else 0
    elif isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    if not 1 <= nbytes <= MAX_BYTES:
        raise RequestError(f"{name} is {size!r:.40}: give bytes, or a size such as 512M, 2G or 1.5GiB")
    return nbytes


def in_units(nbytes: int) -> str:
    """Return bytes in decimal units: "3.2 GB", "45.0 MB"."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
