"""Splits a text into special tokens, which are matched as a whole, and the text between them."""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from operator import itemgetter

from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt

# White space by isspace() of the C locale.
C_SPACES = " \t\n\v\f\r"
_HEAD_CHARACTERS = 2  # characters by which tokens are grouped
_MAX_SCANNED_TOKENS = 300  # tokens that are searched for one by one
_MAX_PATTERNS = 64

IsAllowed = Callable[[int, int, int], bool]  # (token, start, end): whether a token may match text[start:end]


@dataclass(frozen=True)
class AddedToken:
    """A token that is matched by its text, like the `tokenizers` library's AddedToken.

    lstrip, rstrip    the spaces before or after it belong to it and are dropped
    """

    text: str
    token: int
    lstrip: bool = False
    rstrip: bool = False


class SpecialTokenSplitter:
    """Splits texts at special tokens: the longest token first, wherever it occurs, then the next in what remains.

    This is llama.cpp's order (llama-vocab.cpp, tokenizer_st_partition).
    """

    def __init__(self, tokens: Iterable[AddedToken], spaces: str | None = C_SPACES) -> None:
        """`spaces` are the characters that a token may strip; None: all white space, as str.strip."""
        longest_first = sorted((token for token in tokens if token.text), key=lambda token: -len(token.text.encode()))
        self._rank = {token.text: i for i, token in reversed(list(enumerate(longest_first)))}
        self._tokens = longest_first
        self._spaces = spaces
        self._groups: dict[str, list[str]] = {}  # by their heads: few heads, perhaps thousands of tokens
        for text in self._rank:
            self._groups.setdefault(text[:_HEAD_CHARACTERS], []).append(text)
        self._patterns: dict[tuple[int, ...], re.Pattern[str] | None] = {}

    def split(self, text: str, is_allowed: IsAllowed | None = None) -> list[str | int]:
        """Return the ids of special tokens and the texts between them. No text is empty.

        is_allowed    whether a token may match text[start:end]; None: every token may
        """
        present = self._find_present(text)
        if not present:
            return [text] if text else []
        pattern = self._get_pattern(present)
        if pattern is not None:
            if is_allowed is None:
                pieces = enumerate(pattern.split(text))
                return [self._tokens[self._rank[piece]].token if i % 2 else piece for i, piece in pieces if piece]
            parts = self._split_if_allowed(pattern, text, is_allowed)
            if parts is not None:
                return parts
        fragments: list[tuple[int, str | int]] = [(0, text)]
        for rank in present:
            token = self._tokens[rank]
            fragments = [
                piece
                for start, fragment in fragments
                for piece in (
                    self._split_fragment(fragment, token, start, is_allowed)
                    if isinstance(fragment, str)
                    else [(start, fragment)]
                )
            ]
        return [fragment for _, fragment in fragments]

    def _split_if_allowed(self, pattern: re.Pattern[str], text: str, is_allowed: IsAllowed) -> list[str | int] | None:
        """`split` by a pattern; None where a token is not allowed, which may let others match."""
        parts: list[str | int] = []
        end = 0
        for match in pattern.finditer(text):
            token = self._tokens[self._rank[match[0]]].token
            if not is_allowed(token, match.start(), match.end()):
                return None
            parts += [text[end : match.start()], token]
            end = match.end()
        return [part for part in (*parts, text[end:]) if part != ""]

    def split_prompt(self, prompt: RenderedPrompt, control: Collection[int]) -> list[str | int]:
        """`split` of a rendered prompt. Tokens of `control` match in template text alone, and no other token matches a
        part of those."""
        origins = prompt.origins
        if all(is_template for _, is_template in prompt.spans):
            return self.split(prompt.text)
        control_spans: list[tuple[int, int]] | None = None

        def is_allowed(token: int, start: int, end: int) -> bool:
            nonlocal control_spans
            if origins.is_template(start, end):
                return True
            if token in control:
                return False
            if not any(origins.is_template(i, i + 1) for i in (start, end - 1)):
                return True
            # It crosses the border between content and template text.
            if control_spans is None:
                control_spans = self._find_control_spans(prompt, control)
            following = bisect_right(control_spans, start, key=itemgetter(1))
            return following == len(control_spans) or control_spans[following][0] >= end

        return self.split(prompt.text, is_allowed)

    def _find_control_spans(self, prompt: RenderedPrompt, control: Collection[int]) -> list[tuple[int, int]]:
        """Return where control tokens stand in template text: (start, end), in order, without overlaps."""
        spans: list[tuple[int, int]] = []

        for first, last in prompt.origins.template_spans():

            def record(token: int, start: int, end: int, first: int = first) -> bool:
                if token in control:
                    spans.append((first + start, first + end))
                return True

            self.split(prompt.text[first:last], record)
        return sorted(spans)

    def _find_present(self, text: str) -> tuple[int, ...]:
        """Return the ranks of the tokens that occur in `text`, in order."""
        present: set[str] = set()
        for head, group in self._groups.items():
            if head not in text:
                continue
            sizes = set(map(len, group)) if len(group) > _MAX_SCANNED_TOKENS else set()
            # Whichever is less work: search the text for each token, or try every size at each occurrence of the head.
            if len(group) <= _MAX_SCANNED_TOKENS or len(group) * len(text) < text.count(head) * sum(sizes):
                present.update(token for token in group if token in text)
                continue
            for match in re.finditer(f"(?={re.escape(head)})", text):
                start = match.start()
                present.update(text[start : start + size] for size in sizes)
        return tuple(sorted(self._rank[token] for token in present if token in self._rank))

    def _get_pattern(self, ranks: tuple[int, ...]) -> re.Pattern[str] | None:
        """Return a pattern that finds these tokens in one pass; None where their order matters or they strip spaces."""
        if ranks not in self._patterns:
            if len(self._patterns) >= _MAX_PATTERNS:
                self._patterns = {}
            tokens = [self._tokens[rank] for rank in ranks]
            texts = [token.text for token in tokens]
            is_plain = len(tokens) <= _MAX_SCANNED_TOKENS and not any(token.lstrip or token.rstrip for token in tokens)
            is_unordered = is_plain and not any(_overlap(a, b) for a in texts for b in texts if a != b)
            # The longest comes first where several begin at one position.
            longest_first = sorted(texts, key=len, reverse=True)
            self._patterns[ranks] = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if is_unordered else None
        return self._patterns[ranks]

    def _split_fragment(
        self, text: str, token: AddedToken, offset: int, is_allowed: IsAllowed | None
    ) -> list[tuple[int, str | int]]:
        """Split a fragment at one token. `offset` is where the fragment begins in the whole text; results count so."""
        parts: list[tuple[int, str | int]] = []
        start = position = 0
        while (position := text.find(token.text, position)) >= 0:
            end = position + len(token.text)
            if is_allowed is not None and not is_allowed(token.token, offset + position, offset + end):
                position += 1
                continue
            before = text[start:position]
            if token.lstrip:
                before = before.rstrip(self._spaces)
            if before:
                parts.append((offset + start, before))
            parts.append((offset + position, token.token))
            start = end
            while token.rstrip and start < len(text) and not text[start].strip(self._spaces):
                start += 1
            position = start
        return [*parts, (offset + start, text[start:])] if start < len(text) else parts


def _overlap(first: str, second: str) -> bool:
    """Whether a suffix of `first` is a prefix of `second`, so that their occurrences in a text may overlap.

    Runs of one character do not count: split from the left, longest first, they come out the same in any order.
    """
    if len({*first, *second}) == 1:
        return False
    return any(second.startswith(first[start:]) for start in range(1, len(first)))
