"""PLaMo's unigram model: of all segmentations of a text into tokens, the one with the highest total integer score.

The text is processed from its end, so that among equal totals the segmentation with the longest first token wins.
Rules: llama.cpp's llm_tokenizer_plamo2, which agrees with the published tokenization_plamo.py.
"""

from collections.abc import Callable, Mapping

UNIT = 1e4  # scores are counted in ten thousandths
UNKNOWN_SCORE, MIN_SCORE = -10_000_000, -20_000_000  # of a character without a token; tokens at or below are not used
BYTE_ORDER_MARK = "\ufeff"  # at the beginning of a text: dropped


class PlamoUnigram:
    """Turns a text into ids by Viterbi's algorithm, from its end."""

    def __init__(
        self, ids: Mapping[str, int], scores: Mapping[str, float], fallback: Callable[[str], tuple[int, ...]]
    ) -> None:
        """
        ids        text -> id of every token that text may become
        scores     text -> its score, never NaN
        fallback   encodes a character without a token
        """
        self._ids = ids
        self._fallback = fallback
        self._scores: dict[str, int | None] = {}
        for text in ids:
            score = max(min(scores[text], 1e9), -1e9) * UNIT
            rounded = int(score + (0.5 if score > 0 else -0.5))  # halves away from zero, as C rounds
            if rounded > MIN_SCORE:
                for end in range(1, len(text)):
                    self._scores.setdefault(text[:end], None)  # a prefix of a token, but not a token
                self._scores[text] = rounded

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`."""
        text = text.removeprefix(BYTE_ORDER_MARK)
        ids: list[int] = []
        position = 0
        for length in self._find_lengths(text):
            piece = text[position : position + length] if length else text[position]
            ids += [self._ids[piece]] if length else self._fallback(piece)
            position += len(piece)
        return ids

    def _find_lengths(self, text: str) -> list[int]:
        """Return the length of each token, in their order; 0 for a character without a token."""
        count = len(text)
        scores = self._scores
        best = [0] * (count + 1)
        best_lengths = [0] * count
        for start in range(count - 1, -1, -1):
            total = best[start + 1] + UNKNOWN_SCORE
            length = 0
            for end in range(start + 1, count + 1):
                piece = text[start:end]
                if piece not in scores:
                    break
                score = scores[piece]
                if score is not None and best[end] + score >= total:
                    total = best[end] + score
                    length = end - start
            best[start] = total
            best_lengths[start] = length
        lengths = []
        position = 0
        while position < count:
            lengths.append(best_lengths[position])
            position += best_lengths[position] or 1
        return lengths
