"""Cuts a text into the pieces within which a BPE vocabulary merges."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sporelm.text.char_sets import SEPARATOR, CharacterCodes


@dataclass(frozen=True)
class Thousands:
    """Cuts runs of digits into groups of three, counted from the right.

    digits        what a digit is, as a pattern
    isolated      cut before and after a run too; otherwise only where groups begin that are whole
    whole_word    leave a run alone that a letter, mark or connector follows
    """

    digits: str = r"\d"
    isolated: bool = True
    whole_word: bool = False


Rule = str | Thousands


class Cutter:
    """Applies rules one after the other, each to the pieces that the ones before left.

    A rule that is a pattern cuts around each of its matches; what lies between two matches is one piece.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._codes = CharacterCodes([rule.digits if isinstance(rule, Thousands) else rule for rule in rules] + [r"\w"])
        *patterns, word = self._codes.patterns()
        *first, last = zip(rules, patterns, strict=True)
        self._steps = [_step(rule, pattern, word) for rule, pattern in first]
        self._last = _last_step(*last, word)

    def cut(self, text: str) -> list[str]:
        """The pieces of `text`, in order; joined they are `text`."""
        codes = self._codes.codes(text)
        for step in self._steps:
            codes = step(codes)
        pieces = self._last(codes)
        if text.isascii():
            return pieces
        # Only pieces with other characters must be taken from the text itself.
        ends = accumulate(map(len, pieces))
        return [
            piece if piece.isascii() else text[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)
        ]


def _step(rule: Rule, pattern: str, word: str) -> Callable[[str], str]:
    """What puts a separator around each match."""
    if isinstance(rule, Thousands):
        return _grouping(rule, pattern, word)
    split = re.compile(f"({pattern})").split
    return lambda codes: SEPARATOR.join(split(codes))


def _last_step(rule: Rule, pattern: str, word: str) -> Callable[[str], list[str]]:
    if isinstance(rule, str) and _matches_everything(rule):
        return re.compile(pattern).findall
    mark = _step(rule, pattern, word)
    return lambda codes: list(filter(None, mark(codes).split(SEPARATOR)))


def _matches_everything(rule: str) -> bool:
    """Whether no character is left between matches: words, numbers, other signs and white space are all named."""
    return rule.endswith(r"|\s+") and r"[^\s\p{L}" in rule and "(" not in rule.replace("(?:", "").replace(r"(?!\S)", "")


def _grouping(rule: Thousands, digit: str, word: str) -> Callable[[str], str]:
    def groups(match: re.Match[str]) -> str:
        run = match[0]
        if rule.whole_word and continues(match.string, match.end()):
            return run
        first = len(run) % 3
        cuts = SEPARATOR.join([run[:first], *(run[start : start + 3] for start in range(first, len(run), 3))])
        return SEPARATOR + cuts + SEPARATOR if rule.isolated else cuts

    continues = re.compile(word).match
    replace = re.compile(f"{digit}+").sub
    return lambda codes: replace(groups, codes)
