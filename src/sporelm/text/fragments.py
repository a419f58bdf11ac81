"""Special tokens found in a text as a whole, and what is left between them."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from operator import itemgetter

from sporelm.text.rendered_prompt import RenderedPrompt

# What isspace() of the C locale takes for a space.
C_SPACES = " \t\n\v\f\r"
_BEGINNING = 2  # characters by which tokens are grouped
_FEW = 300  # tokens that are looked for one by one
_MAX_PATTERNS = 64

Allows = Callable[[int, int, int], bool]  # (token, start, end): whether a token may be taken from text[start:end]


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

    def split(self, text: str, allows: Allows | None = None) -> list[str | int]:
        """Ids of special tokens and, between them, the texts that are none. No text is empty.

        allows    whether a token may be taken from text[start:end]; None: every token may
        """
        present = self._present(text)
        if not present:
            return [text] if text else []
        pattern = self._pattern(present)
        if pattern is not None:
            if allows is None:
                pieces = enumerate(pattern.split(text))
                return [self._tokens[self._rank[piece]].token if i % 2 else piece for i, piece in pieces if piece]
            found = self._split_if_allowed(pattern, text, allows)
            if found is not None:
                return found
        parts: list[tuple[int, str | int]] = [(0, text)]
        for rank in present:
            token = self._tokens[rank]
            parts = [
                piece
                for place, part in parts
                for piece in (self._cut(part, token, place, allows) if isinstance(part, str) else [(place, part)])
            ]
        return [part for _, part in parts]

    def _split_if_allowed(self, pattern: re.Pattern[str], text: str, allows: Allows) -> list[str | int] | None:
        """`split` by a pattern; None where a token is not allowed, which may let others be found."""
        parts: list[str | int] = []
        end = 0
        for match in pattern.finditer(text):
            token = self._tokens[self._rank[match[0]]].token
            if not allows(token, match.start(), match.end()):
                return None
            parts += [text[end : match.start()], token]
            end = match.end()
        return [part for part in (*parts, text[end:]) if part != ""]

    def split_prompt(self, prompt: RenderedPrompt, control: Collection[int]) -> list[str | int]:
        """`split` of a rendered prompt: tokens of `control` are taken from the template's own text alone, and no other
        token takes a part of those."""
        origins = prompt.origins
        if all(is_template for _, is_template in prompt.spans):
            return self.split(prompt.text)
        own: list[tuple[int, int]] | None = None

        def allows(token: int, start: int, end: int) -> bool:
            nonlocal own
            if origins.is_template(start, end):
                return True
            if token in control:
                return False
            if not any(origins.is_template(i, i + 1) for i in (start, end - 1)):
                return True
            # It reaches from content into the template's text, or back.
            if own is None:
                own = self._control_places(prompt, control)
            following = bisect_right(own, start, key=itemgetter(1))
            return following == len(own) or own[following][0] >= end

        return self.split(prompt.text, allows)

    def _control_places(self, prompt: RenderedPrompt, control: Collection[int]) -> list[tuple[int, int]]:
        """Where control tokens stand in the template's own text: (start, end), in order, none in another."""
        found: list[tuple[int, int]] = []

        for first, last in prompt.origins.template_spans():

            def note(token: int, start: int, end: int, first: int = first) -> bool:
                if token in control:
                    found.append((first + start, first + end))
                return True

            self.split(prompt.text[first:last], note)
        return sorted(found)

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

    def _cut(self, text: str, token: SpecialText, place: int, allows: Allows | None) -> list[tuple[int, str | int]]:
        """Cut a part at one token. `place` is where the part begins in the whole text; so it is in the result."""
        found: list[tuple[int, str | int]] = []
        start = at = 0
        while (at := text.find(token.text, at)) >= 0:
            end = at + len(token.text)
            if allows is not None and not allows(token.token, place + at, place + end):
                at += 1
                continue
            before = text[start:at]
            if token.takes_left:
                before = before.rstrip(self._spaces)
            if before:
                found.append((place + start, before))
            found.append((place + at, token.token))
            start = end
            while token.takes_right and start < len(text) and not text[start].strip(self._spaces):
                start += 1
            at = start
        return [*found, (place + start, text[start:])] if start < len(text) else found


def _overlap(first: str, second: str) -> bool:
    """Whether an end of `first` is a beginning of `second`, so that their places in a text may overlap.

    Runs of one character do not count: cut from the left, longest first, they come out the same in any order.
    """
    if len({*first, *second}) == 1:
        return False
    return any(second.startswith(first[start:]) for start in range(1, len(first)))
