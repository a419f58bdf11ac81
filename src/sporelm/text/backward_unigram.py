"""PLaMo's unigram model: of all ways to cut a text into tokens, the one of the highest sum of whole scores.

The text is gone through from its end, so that of sums that are equal the cut with the longest first token is taken.
Rules: llama.cpp's llm_tokenizer_plamo2, which says the same as the published tokenization_plamo.py.
"""

from collections.abc import Callable, Mapping

UNIT = 1e4  # scores are counted in ten thousandths
UNKNOWN_SCORE, LEAST_SCORE = -10_000_000, -20_000_000  # of a character that is no token; tokens below are none
MARK = "\ufeff"  # in front of a text: left out


class BackwardUnigram:
    """Turns a text into ids by Viterbi's algorithm, from its end."""

    def __init__(
        self, ids: Mapping[str, int], scores: Mapping[str, float], spelled: Callable[[str], tuple[int, ...]]
    ) -> None:
        """
        ids       text -> id of every token that text may become
        scores    text -> its score, none NaN
        spelled   the ids of a character that is no token
        """
        self._ids, self._spelled = ids, spelled
        self._scores: dict[str, int | None] = {}
        for text in ids:
            score = max(min(scores[text], 1e9), -1e9) * UNIT
            whole = int(score + (0.5 if score > 0 else -0.5))  # halves away from zero, as C rounds
            if whole > LEAST_SCORE:
                for end in range(1, len(text)):
                    self._scores.setdefault(text[:end], None)  # goes on, but is no token
                self._scores[text] = whole

    def ids(self, text: str) -> list[int]:
        """The ids of `text`."""
        text = text.removeprefix(MARK)
        found: list[int] = []
        place = 0
        for length in self._lengths(text):
            piece = text[place : place + length] if length else text[place]
            found += [self._ids[piece]] if length else self._spelled(piece)
            place += len(piece)
        return found

    def _lengths(self, text: str) -> list[int]:
        """How long each token is, in their order; 0 for a character that is none."""
        count, known = len(text), self._scores
        best, chosen = [0] * (count + 1), [0] * count
        for start in range(count - 1, -1, -1):
            total, length = best[start + 1] + UNKNOWN_SCORE, 0
            for end in range(start + 1, count + 1):
                piece = text[start:end]
                if piece not in known:
                    break
                score = known[piece]
                if score is not None and best[end] + score >= total:
                    total, length = best[end] + score, end - start
            best[start], chosen[start] = total, length
        lengths, place = [], 0
        while place < count:
            lengths.append(chosen[place])
            place += chosen[place] or 1
        return lengths
