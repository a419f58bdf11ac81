"""What errors of llguidance mean for whoever gave the grammar, in one line that says what to do."""

import re
from collections.abc import Iterable

LONGEST = 200  # characters of a reason
LONGEST_PATTERN = 80
NO_TOKEN = "NoExtensionBias"  # llguidance's word for a place where no token of the vocabulary can come next
REMEDY = "leave it out of the grammar, or use a model that can say it"

_FORCED = re.compile(r"forced bytes: got '(.*?)'; applying")
_REGEX = re.compile(r"(?:at \S+: )?invalid regex (.*) \(in regex\): regex parse error:")


def in_words(reason: str) -> str:
    """One line for an error, without the state of the parser: what is wrong, and with what."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["unknown reason"]
    if lines[0] == NO_TOKEN:
        return f"the model's vocabulary has no token for what must come next: {REMEDY}"
    if forced := _FORCED.search(lines[0]):
        return (
            f"the model's vocabulary has no token for {forced[1][:LONGEST_PATTERN]!r}, which must come next: {REMEDY}"
        )
    wrong = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if wrong is not None and (pattern := _REGEX.fullmatch(lines[0])):
        return f"{wrong} (in the expression {shortened(pattern[1])})"[:LONGEST]
    return lines[0][:LONGEST]


def without_token(forced: bytes, tokens: Iterable[bytes]) -> str:
    """Why a text cannot be said that an answer must begin with: the first of its characters that no token has."""
    several = set(tokens)
    known = b"\xff".join(several)  # a byte that no UTF-8 has, so that no character reaches from one token into another

    def can_be_said(sign: str) -> bool:
        return sign.encode() in known or all(bytes([byte]) in several for byte in sign.encode())

    missing = next((sign for sign in forced.decode("utf-8", "ignore") if not can_be_said(sign)), None)
    if missing is None:
        return in_words(NO_TOKEN)
    return f"the model's vocabulary has no token for {missing!r}, which must come: {REMEDY}"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_PATTERN else f"{text[:LONGEST_PATTERN]}..."
