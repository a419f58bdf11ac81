"""SentencePiece's unigram model: of all segmentations of a text into tokens, the one with the highest total score."""

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from sporelm.errors import ModelFileError

_UNKNOWN_PENALTY = 10.0


class Unigram:
    """Turns normalized text into ids by Viterbi's algorithm, over the whole text.

    SentencePiece adds scores in float32 and llama.cpp in float64, which decides between segmentations that are almost
    equal: `float32` asks for the former.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        unknown: int,
        *,
        min_score: float,
        float32: bool,
        fallback: Callable[[str], tuple[int, ...]] | None = None,
    ) -> None:
        """
        ids          text -> id of every token that text may become
        scores       text -> its score
        min_score    the lowest score of a normal token; an unknown character has 10 less
        fallback     encodes text that no token covers; None: one unknown token for a run of it
        """
        self._scores: dict[str, float | None] = {}
        for text, score in scores.items():
            for end in range(1, len(text)):
                self._scores.setdefault(text[:end], None)  # a prefix of a token, but not a token
            self._scores[text] = score
        self._ids = ids
        self._unknown = unknown
        self._fallback = fallback
        self._typecode: Literal["f", "d"] = "f" if float32 else "d"
        self._unknown_score = array("f", [min_score - _UNKNOWN_PENALTY])[0]

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; a run that no token covers is one unknown token, or what the fallback gives."""
        starts, is_token = self._find_best_segmentation(text)
        segments = []
        end = len(text)
        while end:
            start = starts[end]
            segments.append((start, end, is_token[end]))
            end = start
        ids: list[int] = []
        unknown_run: str = ""
        for start, end, covered in reversed(segments):
            if covered:
                ids += self._encode_unknown(unknown_run)
                unknown_run = ""
                ids.append(self._ids[text[start:end]])
            else:
                unknown_run += text[start:end]
        ids += self._encode_unknown(unknown_run)
        return ids

    def _encode_unknown(self, run: str) -> tuple[int, ...]:
        if not run:
            return ()
        return (self._unknown,) if self._fallback is None else self._fallback(run)

    def _find_best_segmentation(self, text: str) -> tuple[list[int], bytearray]:
        """Return where the last segment before each position begins, and whether that segment is a token."""
        count = len(text)
        starts = [-1] * (count + 1)
        is_token = bytearray(count + 1)
        best: array[float] = array(self._typecode, bytes(array(self._typecode).itemsize * (count + 1)))
        rounded: array[float] = array(self._typecode, [0.0])
        scores = self._scores
        unknown_score = self._unknown_score
        for i in range(count):
            here = best[i]
            has_single = False
            for end in range(i + 1, count + 1):
                score = scores.get(text[i:end], _STOP)
                if score is None:
                    continue
                if score == _STOP:
                    break
                has_single = has_single or end == i + 1
                rounded[0] = here + score
                total = rounded[0]  # in the precision of the sums
                if starts[end] < 0 or total > best[end]:
                    starts[end] = i
                    best[end] = total
                    is_token[end] = 1
            if not has_single:
                rounded[0] = here + unknown_score
                total = rounded[0]
                if starts[i + 1] < 0 or total > best[i + 1]:
                    starts[i + 1] = i
                    best[i + 1] = total
                    is_token[i + 1] = 0
        return starts, is_token


_STOP = float("inf")

_MAX_PREFIX_CHARACTERS = 1 << 28  # of all prefixes of all tokens, which the model stores
# All prefixes may be looked up at each position of a text: real tokens have up to a few dozen characters.
_MAX_TOKEN_CHARACTERS = 1 << 10


def check_total_length(texts: Collection[str], label: str) -> None:
    """Raise ModelFileError for tokens so long that they would fill the memory, or make encoding quadratic."""
    longest = max(map(len, texts), default=0)
    if longest > _MAX_TOKEN_CHARACTERS:
        raise ModelFileError(
            f"{label}: its tokens are too long: one has {longest} characters, not {_MAX_TOKEN_CHARACTERS}"
        )
    total = sum(len(text) ** 2 for text in texts) // 2
    if total > _MAX_PREFIX_CHARACTERS:
        raise ModelFileError(f"{label}: its tokens are too long: their prefixes have {total} characters in all")
