"""Special tokens found in a text as a whole, and what is left between them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# What isspace() of the C locale takes for a space.
C_SPACES = " \t\n\v\f\r"
_BEGINNING = 2  # characters by which tokens are grouped
_FEW = 300  # tokens that are looked for one by one
_MAX_PATTERNS = 64


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
        self._groups: dict[str, list[str]] = {}  # by how they begin: few beginnings, perhaps thousands of tokens
        for text in self._rank:
            self._groups.setdefault(text[:_BEGINNING], []).append(text)
        self._patterns: dict[tuple[int, ...], re.Pattern[str] | None] = {}

    def split(self, text: str) -> list[str | int]:
        """Ids of special tokens and, between them, the texts that are none. No text is empty."""
        present = self._present(text)
        if not present:
            return [text] if text else []
        pattern = self._pattern(present)
        if pattern is not None:
            pieces = enumerate(pattern.split(text))
            return [self._tokens[self._rank[piece]].token if i % 2 else piece for i, piece in pieces if piece]
        parts: list[str | int] = [text]
        for rank in present:
            token = self._tokens[rank]
            parts = [piece for part in parts for piece in (self._cut(part, token) if isinstance(part, str) else [part])]
        return parts

    def _present(self, text: str) -> tuple[int, ...]:
        """The ranks of the tokens that occur in `text`, in order."""
        found: set[str] = set()
        for beginning, group in self._groups.items():
            if beginning not in text:
                continue
            sizes = set(map(len, group)) if len(group) > _FEW else set()
            # Whichever looks at less: the whole text for each token, or every size at each place where one may begin.
            if len(group) <= _FEW or len(group) * len(text) < text.count(beginning) * sum(sizes):
                found.update(token for token in group if token in text)
                continue
            for match in re.finditer(f"(?={re.escape(beginning)})", text):
                start = match.start()
                found.update(text[start : start + size] for size in sizes)
        return tuple(sorted(self._rank[token] for token in found if token in self._rank))

    def _pattern(self, ranks: tuple[int, ...]) -> re.Pattern[str] | None:
        """What finds these tokens in one pass, or None where their order matters or they take spaces."""
        if ranks not in self._patterns:
            if len(self._patterns) >= _MAX_PATTERNS:
                self._patterns = {}
            tokens = [self._tokens[rank] for rank in ranks]
            texts = [token.text for token in tokens]
            plain = len(tokens) <= _FEW and not any(token.takes_left or token.takes_right for token in tokens)
            alone = plain and not any(_overlap(a, b) for a in texts for b in texts if a != b)
            # The longest comes first where several begin at one place.
            longest_first = sorted(texts, key=len, reverse=True)
            self._patterns[ranks] = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if alone else None
        return self._patterns[ranks]

    def _cut(self, text: str, token: SpecialText) -> list[str | int]:
        found: list[str | int] = []
        start = 0
        while (place := text.find(token.text, start)) >= 0:
            before = text[start:place]
            if token.takes_left:
                before = before.rstrip(self._spaces)
            found += [before, token.token] if before else [token.token]
            start = place + len(token.text)
            while token.takes_right and start < len(text) and not text[start].strip(self._spaces):
                start += 1
        return [*found, text[start:]] if start < len(text) else found


def _overlap(first: str, second: str) -> bool:
    """Whether an end of `first` is a beginning of `second`, so that their places in a text may overlap.

    Runs of one character do not count: cut from the left, longest first, they come out the same in any order.
    """
    if len({*first, *second}) == 1:
        return False
    return any(second.startswith(first[start:]) for start in range(1, len(first)))
