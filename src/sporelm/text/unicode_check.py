"""Checks that a text is valid Unicode, which Python's `str` and JSON's escapes do not guarantee."""

# How Python reads a byte of a command line or of a terminal that is not UTF-8 (`surrogateescape`, PEP 383).
_ESCAPED_BYTES = range(0xDC80, 0xDD00)


def find_invalid_character(text: str) -> str | None:
    """Describe the first character that is not valid Unicode, with its position in the text; None if all are valid."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        if code in _ESCAPED_BYTES:
            return f"the byte 0x{code - 0xDC00:02X} at position {error.start}, which is not UTF-8"
        return f"half of a surrogate pair, U+{code:04X} at position {error.start}, which is not valid Unicode"
    return None
