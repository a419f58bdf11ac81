"""The scores of SentencePiece's BPE as an order of merges, which is what the `tokenizers` library goes by."""

from collections.abc import Mapping, Sequence


def merges_of_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every two tokens that form a third, the best-scored third first.

    ids       text -> id of the tokens that text may become
    scores    by id

    Of equal scores SentencePiece joins the leftmost pair first; an order cannot say that, so vocabularies with such
    ties may give other ids. Among themselves they are ordered by the ids of the result and of the parts.
    """
    found: list[tuple[float, int, int, int, str, str]] = []
    for text, token in ids.items():
        for cut in range(1, len(text)):
            first, second = text[:cut], text[cut:]
            if first in ids and second in ids:
                found.append((-scores[token], token, ids[first], ids[second], first, second))
    found.sort()
    return [(first, second) for *_, first, second in found]
