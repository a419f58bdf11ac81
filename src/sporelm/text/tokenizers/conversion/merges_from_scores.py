"""Converts the scores of SentencePiece's BPE to an ordered list of merges, as the `tokenizers` library requires."""

from collections.abc import Mapping, Sequence


def compute_merges(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that form a third one, the highest-scored result first.

    ids       text -> id of the tokens that text may become
    scores    by id

    Among equal scores SentencePiece merges the leftmost pair first. An ordered list cannot express that, so
    vocabularies with such ties may give other ids. Ties are ordered by the ids of the result and of the parts.
    """
    merges: list[tuple[float, int, int, int, str, str]] = []
    for text, token in ids.items():
        for cut in range(1, len(text)):
            first, second = text[:cut], text[cut:]
            if first in ids and second in ids:
                merges.append((-scores[token], token, ids[first], ids[second], first, second))
    merges.sort()
    return [(first, second) for *_, first, second in merges]
