"""Translates errors of llguidance for the author of a grammar: one line that names the problem and the remedy."""

import re
from collections.abc import Iterable

MAX_CHARACTERS = 200  # of a message
MAX_PATTERN_CHARACTERS = 80
NO_TOKEN = "NoExtensionBias"  # llguidance's message where no token of the vocabulary can come next
REMEDY = "leave it out of the grammar, or use a model that can write it"

_FORCED = re.compile(r"forced bytes: got '(.*?)'; applying")
_REGEX = re.compile(r"(?:at \S+: )?invalid regex (.*) \(in regex\): regex parse error:")


def translate_llguidance_error(reason: str) -> str:
    """Return an error in one line, without the state of the parser: the problem, and its place in the grammar."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["unknown reason"]
    if lines[0] == NO_TOKEN:
        return f"the model's vocabulary has no token for what must come next: {REMEDY}"
    if forced := _FORCED.search(lines[0]):
        text = forced[1][:MAX_PATTERN_CHARACTERS]
        return f"the model's vocabulary has no token for {text!r}, which must come next: {REMEDY}"
    problem = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), None)
    if problem is not None and (pattern := _REGEX.fullmatch(lines[0])):
        return f"{problem} (in the expression {shorten(pattern[1])})"[:MAX_CHARACTERS]
    return lines[0][:MAX_CHARACTERS]


def describe_missing_token(forced: bytes, tokens: Iterable[bytes]) -> str:
    """Return why the text that begins every answer cannot be written: the first of its characters without a token."""
    token_set = set(tokens)
    joined = b"\xff".join(token_set)  # a byte that UTF-8 never contains, so that no character spans two tokens

    def has_token(character: str) -> bool:
        return character.encode() in joined or all(bytes([byte]) in token_set for byte in character.encode())

    missing = next((character for character in forced.decode("utf-8", "ignore") if not has_token(character)), None)
    if missing is None:
        return translate_llguidance_error(NO_TOKEN)
    return f"the model's vocabulary has no token for {missing!r}, which must come: {REMEDY}"


def shorten(text: str) -> str:
    return text if len(text) <= MAX_PATTERN_CHARACTERS else f"{text[:MAX_PATTERN_CHARACTERS]}..."
