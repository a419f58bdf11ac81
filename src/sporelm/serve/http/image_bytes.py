"""TextByteCounter: the bytes of a body outside the data of its images, counted as it arrives.

Images are most of a body that has any, as base64, and cost little: one string each. All other bytes may be JSON of many
small values, which takes some twenty times its bytes once it is decoded; so they have a limit of their own.
"""

import re

MIN_RUN = 512  # base64 characters in a row that count as the data of an image
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\"  # some encoders write / as \/
_RUN = re.compile(rb"(?<![A-Za-z0-9+/=\\])[A-Za-z0-9+/=\\]{%d,}" % MIN_RUN)  # looks at each byte once or twice


class TextByteCounter:
    """Counts the bytes that are not in a long run of base64 characters."""

    def __init__(self) -> None:
        self.num_text_bytes = 0
        self._run = 0  # base64 characters at the end so far

    def add(self, chunk: bytes) -> int:
        """Return the bytes of text so far, the last run left out."""
        if not chunk.translate(None, BASE64):  # the quickest way to tell, for most chunks of a picture
            self._run += len(chunk)
            return self.num_text_bytes
        first = len(chunk) - len(chunk.lstrip(BASE64))
        self._run += first
        self._end_run()
        last = len(chunk) - len(chunk.rstrip(BASE64))
        middle = chunk[first : len(chunk) - last]
        self.num_text_bytes += len(middle) - sum(len(match[0]) for match in _RUN.finditer(middle))
        self._run = last
        return self.num_text_bytes

    def _end_run(self) -> None:
        if self._run < MIN_RUN:
            self.num_text_bytes += self._run
        self._run = 0
