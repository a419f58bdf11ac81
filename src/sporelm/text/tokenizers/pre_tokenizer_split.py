"""Splits a text into pre-tokens, within which a BPE vocabulary merges."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sporelm.text.tokenizers.character_codes import SEPARATOR, CharacterCodes


@dataclass(frozen=True)
class DigitGroups:
    """A rule that splits runs of digits into groups of three, counted from the right.

    digits        pattern of a digit
    isolated      split before and after a run too; otherwise only before complete groups
    whole_word    leave a run alone that a letter, mark or connector follows
    """

    digits: str = r"\d"
    isolated: bool = True
    whole_word: bool = False


SplitRule = str | DigitGroups


class PreTokenizerSplitter:
    """Applies rules one after the other, each to the pieces that the rules before it produced.

    A rule that is a pattern splits around each of its matches; the text between two matches is one piece.
    """

    def __init__(self, rules: Sequence[SplitRule]) -> None:
        self._codes = CharacterCodes(
            [rule.digits if isinstance(rule, DigitGroups) else rule for rule in rules] + [r"\w"]
        )
        *patterns, word = self._codes.translate_patterns()
        *first, last = zip(rules, patterns, strict=True)
        self._steps = [_make_step(rule, pattern, word) for rule, pattern in first]
        self._last_step = _make_last_step(*last, word)

    def split(self, text: str) -> list[str]:
        """Return the pre-tokens of `text`, in order; joined they are `text`."""
        codes = self._codes.encode(text)
        for step in self._steps:
            codes = step(codes)
        pieces = self._last_step(codes)
        if text.isascii():
            return pieces
        # Only pieces with other characters must be taken from the text itself.
        ends = accumulate(map(len, pieces))
        return [
            piece if piece.isascii() else text[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)
        ]


def _make_step(rule: SplitRule, pattern: str, word: str) -> Callable[[str], str]:
    """Return a function that puts separators around each match."""
    if isinstance(rule, DigitGroups):
        return _make_digit_step(rule, pattern, word)
    split = re.compile(f"({pattern})").split
    return lambda codes: SEPARATOR.join(split(codes))


def _make_last_step(rule: SplitRule, pattern: str, word: str) -> Callable[[str], list[str]]:
    if isinstance(rule, str) and _matches_every_character(rule):
        return re.compile(pattern).findall
    add_separators = _make_step(rule, pattern, word)
    return lambda codes: list(filter(None, add_separators(codes).split(SEPARATOR)))


def _matches_every_character(rule: str) -> bool:
    """Whether no text is left between matches: the pattern covers words, numbers, other signs and white space."""
    return rule.endswith(r"|\s+") and r"[^\s\p{L}" in rule and "(" not in rule.replace("(?:", "").replace(r"(?!\S)", "")


def _make_digit_step(rule: DigitGroups, digit: str, word: str) -> Callable[[str], str]:
    def group(match: re.Match[str]) -> str:
        run = match[0]
        if rule.whole_word and continues(match.string, match.end()):
            return run
        first = len(run) % 3
        groups = SEPARATOR.join([run[:first], *(run[start : start + 3] for start in range(first, len(run), 3))])
        return SEPARATOR + groups + SEPARATOR if rule.isolated else groups

    continues = re.compile(word).match
    replace = re.compile(f"{digit}+").sub
    return lambda codes: replace(group, codes)
