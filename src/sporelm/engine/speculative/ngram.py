"""Guesses out of the text itself: what followed the last tokens when they stood there before.

Prompt lookup decoding (Saxena 2023): summaries, edits and quotations repeat what was said. Where the guess reaches the
end of the text it goes on from its own beginning: a loop, a table or a list repeats itself.
"""

from collections.abc import Sequence

from sporelm.engine.request import Request
from sporelm.engine.speculative.drafter import DraftTokens

SIZES = (4, 2)  # tokens that must agree
LONGEST = 32  # tokens that agree are counted up to here
BOUNDS = (3, 4, 6, 10, 16)  # tokens that agree, in classes
CHANCES = (0.45, 0.6, 0.75, 0.85, 0.9, 0.95)  # of the next token being the same too, by class, before any was seen
WEIGHT = 16  # guesses that CHANCES count for
MEMORY = 40  # guesses of a class, about, that are remembered


class NgramDrafter:
    """Remembers, for each request, where its last tokens stood before, and how often that was of use."""

    def __init__(self) -> None:
        self.texts: dict[int, _Text] = {}

    def read(self, requests: Sequence[Request], alone: bool = True) -> None:
        """Note where the tokens of these requests stand."""
        for request in requests:
            self.texts.setdefault(request.id, _Text()).read(request.known)

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """What followed before, by request: at most so many tokens for each."""
        found = {request.id: self.propose(request, most) for request, most in wanted}
        return {request: guess for request, guess in found.items() if guess.tokens}

    def propose(self, request: Request, most: int) -> DraftTokens:
        """At most so many tokens that may follow the known ones; none without a guess."""
        self.read([request])
        return self.texts[request.id].following(request.known, most)

    def end(self, request: Request) -> None:
        """Forget a request."""
        self.texts.pop(request.id, None)


class _Text:
    """The last place at which each few tokens stood, by the tokens; and what came of guesses, by what agreed."""

    def __init__(self) -> None:
        self.maps: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        self.length = 0  # of the text that was read
        self.guess: list[int] = []  # the last one, for what comes after `length`
        self.agreed = 0  # tokens before it that agreed
        self.right = [WEIGHT * chance for chance in CHANCES]  # by class
        self.seen = [float(WEIGHT)] * len(CHANCES)

    def read(self, known: list[int]) -> None:
        """Take in what is new. The end of the text itself is left out: it must be found where it stood before."""
        if len(known) < self.length:  # tokens were left out of it
            self.length, self.guess = 0, []
            for places in self.maps:
                places.clear()
        if len(known) > self.length:
            self._learn(known)
        for size, places in zip(SIZES, self.maps, strict=True):
            for end in range(max(size, self.length), len(known)):
                places[tuple(known[end - size : end])] = end
        self.length = len(known)

    def following(self, known: list[int], most: int) -> DraftTokens:
        """At most so many tokens after the last place of the longest of SIZES."""
        for size, places in zip(SIZES, self.maps, strict=True):
            start = places.get(tuple(known[-size:])) if len(known) >= size and most > 0 else None
            if start is not None:
                self.agreed = agreeing(known, start, size)
                tokens = known[start : start + most]
                while len(tokens) < most:
                    tokens += tokens[: most - len(tokens)]
                self.guess = tokens
                classes = [class_of(self.agreed + place) for place in range(len(tokens))]
                return DraftTokens(tokens, [self.right[each] / self.seen[each] for each in classes])
        return DraftTokens([], [])

    def _learn(self, known: list[int]) -> None:
        """Compare the last guess with what came, up to its first wrong token."""
        for place, (guessed, token) in enumerate(zip(self.guess, known[self.length :], strict=False)):
            each = class_of(self.agreed + place)
            self.right[each] += guessed == token
            self.seen[each] += 1
            if self.seen[each] > MEMORY:
                self.right[each] *= 0.75
                self.seen[each] *= 0.75
            if guessed != token:
                break
        self.guess = []


def agreeing(known: list[int], start: int, size: int) -> int:
    """How many tokens before `start` are those at the end of the text, where `size` of them are known to be."""
    most = min(start, LONGEST)
    while size < most and known[start - size - 1] == known[-size - 1]:
        size += 1
    return size


def class_of(agreed: int) -> int:
    """Which of the classes that BOUNDS divide."""
    return sum(agreed >= bound for bound in BOUNDS)
