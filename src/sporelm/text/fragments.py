"""Special tokens found in a text as a whole, and what is left between them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# What isspace() of the C locale takes for a space.
C_SPACES = " \t\n\v\f\r"


@dataclass(frozen=True)
class SpecialText:
    """A token that is recognised by its text.

    takes_left, takes_right    spaces before or after it belong to it, and vanish
    """

    text: str
    token: int
    takes_left: bool = False
    takes_right: bool = False


class Fragments:
    """Cuts texts at special tokens: the longest token first, wherever it occurs, then the next in what is left.

    That is llama.cpp's order (llama-vocab.cpp, tokenizer_st_partition).
    """

    def __init__(self, tokens: Iterable[SpecialText], spaces: str | None = C_SPACES) -> None:
        """`spaces` are the characters that a token may take with it; None: whatever str.strip takes."""
        found = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text.encode()))
        self._rank = {token.text: i for i, token in reversed(list(enumerate(found)))}
        self._tokens = found
        self._spaces = spaces
        lengths: dict[str, set[int]] = {}
        for token in found:
            lengths.setdefault(token.text[0], set()).add(len(token.text))
        self._lengths = {first: sorted(sizes) for first, sizes in lengths.items()}
        self._first = re.compile("[" + re.escape("".join(lengths)) + "]") if lengths else None

    def split(self, text: str) -> list[str | int]:
        """Ids of special tokens and, between them, the texts that are none. No text is empty."""
        parts: list[str | int] = [text] if text else []
        for rank in self._present(text):
            token = self._tokens[rank]
            parts = [piece for part in parts for piece in (self._cut(part, token) if isinstance(part, str) else [part])]
        return parts

    def _present(self, text: str) -> list[int]:
        """The ranks of the tokens that occur in `text`: there may be thousands, and few of them do."""
        if self._first is None:
            return []
        ranks = set()
        for match in self._first.finditer(text):
            start = match.start()
            for size in self._lengths[text[start]]:
                rank = self._rank.get(text[start : start + size])
                if rank is not None:
                    ranks.add(rank)
        return sorted(ranks)

    def _cut(self, text: str, token: SpecialText) -> list[str | int]:
        found: list[str | int] = []
        while True:
            before, mark, text = text.partition(token.text)
            if mark and token.takes_left:
                before = before.rstrip(self._spaces)
            if before:
                found.append(before)
            if not mark:
                return found
            found.append(token.token)
            if token.takes_right:
                text = text.lstrip(self._spaces)
