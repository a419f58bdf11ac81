"""Drafts from the text itself: the tokens that followed the last n-gram at its previous occurrence.

Prompt lookup decoding (Saxena 2023): summaries, edits and quotations repeat the prompt. Where a draft reaches the end
of the text it continues from its own beginning: a loop, a table or a list repeats itself.
"""

from collections.abc import Sequence
from itertools import takewhile

from sporelm.engine.prompt_images import is_image_id
from sporelm.engine.request import Request
from sporelm.engine.speculative.drafter import DraftTokens

SIZES = (4, 2)  # of n-grams: tokens that must match
LONGEST = 32  # tokens that match are counted up to here
BOUNDS = (3, 4, 6, 10, 16)  # tokens that match, in classes
PRIORS = (0.45, 0.6, 0.75, 0.85, 0.9, 0.95)  # probability that a token is accepted, by class, before any was checked
PRIOR_WEIGHT = 16  # draft tokens that PRIORS count for
MAX_COUNT = 40  # draft tokens of a class, about, that are remembered


class NgramDrafter:
    """Remembers, for each request, where its n-grams occurred, and how many draft tokens were accepted."""

    def __init__(self) -> None:
        self.texts: dict[int, _Text] = {}

    def read(self, requests: Sequence[Request], alone: bool = True) -> None:
        """Note where the n-grams of these requests occur."""
        for request in requests:
            self.texts.setdefault(request.id, _Text()).read(request.context_ids)

    def propose_all(self, limits: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """Return draft tokens by request id, up to each request's limit."""
        drafts = {request.id: self.propose(request, limit) for request, limit in limits}
        return {request_id: draft for request_id, draft in drafts.items() if draft.tokens}

    def propose(self, request: Request, limit: int) -> DraftTokens:
        """Return up to `limit` tokens that may follow the context."""
        self.read([request])
        return self.texts[request.id].propose(request.context_ids, limit)

    def end(self, request: Request) -> None:
        """Forget a request."""
        self.texts.pop(request.id, None)


class _Text:
    """The last position after each n-gram, and the acceptance of drafts, by the number of tokens that matched."""

    def __init__(self) -> None:
        self.positions: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        self.length = 0  # of the text that was read
        self.draft: list[int] = []  # the last one, for the tokens after `length`
        self.num_matching = 0  # tokens before it that matched
        self.num_accepted = [PRIOR_WEIGHT * probability for probability in PRIORS]  # by class
        self.num_checked = [float(PRIOR_WEIGHT)] * len(PRIORS)

    def read(self, ids: list[int]) -> None:
        """Take in new tokens. The n-gram at the end is not noted: its previous occurrence must be found."""
        if len(ids) < self.length:  # the context has rolled
            self.length, self.draft = 0, []
            for positions in self.positions:
                positions.clear()
        if len(ids) > self.length:
            self._check_draft(ids)
        for size, positions in zip(SIZES, self.positions, strict=True):
            for end in range(max(size, self.length), len(ids)):
                positions[tuple(ids[end - size : end])] = end
        self.length = len(ids)

    def propose(self, ids: list[int], limit: int) -> DraftTokens:
        """Return up to `limit` tokens that followed the longest n-gram at its last occurrence."""
        for size, positions in zip(SIZES, self.positions, strict=True):
            start = positions.get(tuple(ids[-size:])) if len(ids) >= size and limit > 0 else None
            if start is not None:
                self.num_matching = count_matches(ids, start, size)
                tokens = list(takewhile(lambda token: not is_image_id(token), ids[start : start + limit]))
                if not tokens:
                    break
                while len(tokens) < limit:
                    tokens += tokens[: limit - len(tokens)]
                self.draft = tokens
                classes = [match_class(self.num_matching + index) for index in range(len(tokens))]
                return DraftTokens(tokens, [self.num_accepted[each] / self.num_checked[each] for each in classes])
        return DraftTokens([], [])

    def _check_draft(self, ids: list[int]) -> None:
        """Compare the last draft with the new tokens, up to the first difference."""
        for index, (draft_token, token) in enumerate(zip(self.draft, ids[self.length :], strict=False)):
            each = match_class(self.num_matching + index)
            self.num_accepted[each] += draft_token == token
            self.num_checked[each] += 1
            if self.num_checked[each] > MAX_COUNT:
                self.num_accepted[each] *= 0.75
                self.num_checked[each] *= 0.75
            if draft_token != token:
                break
        self.draft = []


def count_matches(ids: list[int], start: int, size: int) -> int:
    """Return how many tokens before `start` equal those at the end of the text, where `size` of them do."""
    limit = min(start, LONGEST)
    while size < limit and ids[start - size - 1] == ids[-size - 1]:
        size += 1
    return size


def match_class(num_matching: int) -> int:
    """Return the class, as divided by BOUNDS, of a number of matching tokens."""
    return sum(num_matching >= bound for bound in BOUNDS)
