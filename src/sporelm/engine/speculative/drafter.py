"""Where guesses come from."""

from collections.abc import Sequence
from typing import Protocol

from sporelm.engine.request import Request


class Drafter(Protocol):
    """Guesses for the requests of one engine, between its steps. It must never fail for want of room: then there is no
    guess."""

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Take in some of what is known of requests: work that is done once for each text, in several calls if it is
        long. `alone` if nobody else waits meanwhile."""

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, list[int]]:
        """Tokens that may follow what is known, by request: at most so many for each, and `rows` for all together. A
        request without a guess is left out."""

    def end(self, request: Request) -> None:
        """Forget a request."""
