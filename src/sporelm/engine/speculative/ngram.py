"""Guesses out of the text itself: what followed the last tokens when they stood there before.

Prompt lookup decoding (Saxena 2023): summaries, edits and quotations repeat what was said.
"""

from sporelm.engine.request import Request

SIZES = (4, 2)  # tokens that must agree; more of them guess better


class NgramDrafter:
    """Remembers, for each request, where its last tokens stood before."""

    def __init__(self) -> None:
        self.texts: dict[int, _Places] = {}

    def propose(self, request: Request, most: int) -> list[int]:
        """At most so many tokens that may follow the known ones; none without a guess."""
        places = self.texts.get(request.id)
        if places is None:
            places = self.texts[request.id] = _Places()
        return places.following(request.known, most)

    def end(self, request: Request) -> None:
        """Forget a request."""
        self.texts.pop(request.id, None)


class _Places:
    """The last place at which each few tokens stood: what comes after them, by their tokens."""

    def __init__(self) -> None:
        self.maps: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        self.read = 0

    def following(self, known: list[int], most: int) -> list[int]:
        for size, places in zip(SIZES, self.maps, strict=True):
            # The end of the text itself is left out: it must be found where it stood before.
            for end in range(max(size, self.read), len(known)):
                places[tuple(known[end - size : end])] = end
        self.read = len(known)
        for size, places in zip(SIZES, self.maps, strict=True):
            start = places.get(tuple(known[-size:]))
            if start is not None and len(known) >= size:
                return known[start : start + most]
        return []
