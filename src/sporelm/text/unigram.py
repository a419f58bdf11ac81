"""SentencePiece's unigram model: of all ways to cut a text into tokens, the one of the highest sum of scores."""

from array import array
from collections.abc import Callable, Collection, Mapping
from typing import Literal

from sporelm.errors import ModelFileError

_UNKNOWN_PENALTY = 10.0


class Unigram:
    """Turns normalized text into ids by Viterbi's algorithm, over the whole text.

    SentencePiece adds up in float32 and llama.cpp in float64, which decides between cuts that are almost as good:
    `narrow` asks for the former.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        unknown: int,
        *,
        lowest: float,
        narrow: bool,
        spelled: Callable[[str], tuple[int, ...]] | None = None,
    ) -> None:
        """
        ids        text -> id of every token that text may become
        scores     text -> its score
        lowest     the lowest score of a normal token; an unknown character has 10 less
        spelled    the ids of a text that is no token; None: one unknown token
        """
        self._scores: dict[str, float | None] = {}
        for text, score in scores.items():
            for end in range(1, len(text)):
                self._scores.setdefault(text[:end], None)  # goes on, but is no token
            self._scores[text] = score
        self._ids, self._unknown, self._spelled = ids, unknown, spelled
        penalized = lowest - _UNKNOWN_PENALTY
        self._code: Literal["f", "d"] = "f" if narrow else "d"
        self._unknown_score = array("f", [penalized])[0]

    def ids(self, text: str) -> list[int]:
        """The ids of `text`; what no token covers is one unknown token a run, or spelled."""
        starts, known = self._best_cut(text)
        pieces = []
        end = len(text)
        while end:
            start = starts[end]
            pieces.append((start, end, known[end]))
            end = start
        found: list[int] = []
        run: str = ""
        for start, end, is_token in reversed(pieces):
            if is_token:
                found += self._unknown_ids(run)
                run = ""
                found.append(self._ids[text[start:end]])
            else:
                run += text[start:end]
        found += self._unknown_ids(run)
        return found

    def _unknown_ids(self, run: str) -> tuple[int, ...]:
        if not run:
            return ()
        return (self._unknown,) if self._spelled is None else self._spelled(run)

    def _best_cut(self, text: str) -> tuple[list[int], bytearray]:
        """Where the last piece before each position begins, and whether it is a token."""
        count = len(text)
        starts, known = [-1] * (count + 1), bytearray(count + 1)
        best: array[float] = array(self._code, bytes(array(self._code).itemsize * (count + 1)))
        one: array[float] = array(self._code, [0.0])
        scores, unknown_score = self._scores, self._unknown_score
        for i in range(count):
            here = best[i]
            alone = False
            for end in range(i + 1, count + 1):
                score = scores.get(text[i:end], _STOP)
                if score is None:
                    continue
                if score == _STOP:
                    break
                alone = alone or end == i + 1
                one[0] = here + score
                total = one[0]  # rounded to what is added up in
                if starts[end] < 0 or total > best[end]:
                    starts[end], best[end], known[end] = i, total, 1
            if not alone:
                one[0] = here + unknown_score
                total = one[0]
                if starts[i + 1] < 0 or total > best[i + 1]:
                    starts[i + 1], best[i + 1], known[i + 1] = i, total, 0
        return starts, known


_STOP = float("inf")

# Characters of all beginnings of all tokens, each of which the model keeps.
_MAX_TOTAL = 1 << 28
# At each place of a text all beginnings may be looked at, each cut out of it: real tokens have up to a few dozen.
_MAX_CHARACTERS = 1 << 10


def check_total_length(texts: Collection[str], label: str) -> None:
    """Raise ModelFileError for tokens so long that they would fill the memory, or take a text's time squared."""
    longest = max(map(len, texts), default=0)
    if longest > _MAX_CHARACTERS:
        raise ModelFileError(f"{label}: its tokens are too long: one has {longest} characters, not {_MAX_CHARACTERS}")
    total = sum(len(text) ** 2 for text in texts) // 2
    if total > _MAX_TOTAL:
        raise ModelFileError(f"{label}: its tokens are too long: their beginnings have {total} characters in all")
