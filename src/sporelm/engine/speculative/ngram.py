"""Guesses out of the text itself: what followed the last tokens when they stood there before.

Prompt lookup decoding (Saxena 2023): summaries, edits and quotations repeat what was said. Where the guess reaches the
end of the text it goes on from its own beginning: a loop, a table or a list repeats itself.
"""

from collections.abc import Sequence

from sporelm.engine.request import Request

SIZES = (4, 2)  # tokens that must agree; more of them guess better


class NgramDrafter:
    """Remembers, for each request, where its last tokens stood before."""

    def __init__(self) -> None:
        self.texts: dict[int, _Places] = {}

    def read(self, requests: Sequence[Request], alone: bool = True) -> None:
        """Note where the tokens of these requests stand."""
        for request in requests:
            self.texts.setdefault(request.id, _Places()).read(request.known)

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, list[int]]:
        """What followed before, by request: at most so many tokens for each, and `rows` for all together."""
        found: dict[int, list[int]] = {}
        for request, most in wanted:
            guess = self.propose(request, min(most, rows))
            if guess:
                found[request.id] = guess
                rows -= len(guess)
        return found

    def propose(self, request: Request, most: int) -> list[int]:
        """At most so many tokens that may follow the known ones; none without a guess."""
        places = self.texts.setdefault(request.id, _Places())
        places.read(request.known)
        return places.following(request.known, most) if most > 0 else []

    def end(self, request: Request) -> None:
        """Forget a request."""
        self.texts.pop(request.id, None)


class _Places:
    """The last place at which each few tokens stood: what comes after them, by their tokens."""

    def __init__(self) -> None:
        self.maps: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        self.length = 0  # of the text that was read

    def read(self, known: list[int]) -> None:
        """Take in what is new. The end of the text itself is left out: it must be found where it stood before."""
        if len(known) < self.length:  # tokens were left out of it
            self.length = 0
            for places in self.maps:
                places.clear()
        for size, places in zip(SIZES, self.maps, strict=True):
            for end in range(max(size, self.length), len(known)):
                places[tuple(known[end - size : end])] = end
        self.length = len(known)

    def following(self, known: list[int], most: int) -> list[int]:
        """At most so many tokens after the last place of the longest match."""
        for size, places in zip(SIZES, self.maps, strict=True):
            start = places.get(tuple(known[-size:]))
            if start is not None and len(known) >= size:
                found = known[start : start + most]
                while len(found) < most:
                    found += found[: most - len(found)]
                return found
        return []
