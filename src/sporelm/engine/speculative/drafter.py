"""Where guesses come from."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sporelm.engine.request import Request


class DraftTokens(NamedTuple):
    """Tokens that may come next, and for each the chance that it is right if those before it are."""

    tokens: list[int]
    chances: list[float]


class Drafter(Protocol):
    """Guesses for the requests of one engine, between its steps. It must never fail for want of room: then there is no
    guess."""

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Take in some of what is known of requests: work that is done once for each text, in several calls if it is
        long. `alone` if nobody else waits meanwhile."""

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """What may follow, by request: at most so many tokens for each. Of all together `rows` can be used: whoever
        takes time for a guess stops there. A request without a guess is left out."""

    def end(self, request: Request) -> None:
        """Forget a request."""
