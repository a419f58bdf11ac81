"""The protocol of drafters, which propose draft tokens."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sporelm.engine.request import Request


class DraftTokens(NamedTuple):
    """Tokens that may come next, and for each the probability that it is accepted if the ones before it are."""

    tokens: list[int]
    probabilities: list[float]


class Drafter(Protocol):
    """Proposes draft tokens for the requests of one engine, between its steps.

    It must never fail for want of memory: it proposes nothing then.
    """

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Take in some of the contexts of requests: work that is done once for each text, in several calls if it is
        long. `alone`: no other request waits meanwhile."""

    def propose_all(self, limits: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        """Return draft tokens by request id, up to each request's limit; a request may have none.

        All together `rows` can be used: a drafter that needs time for each token stops there.
        """

    def end(self, request: Request) -> None:
        """Forget a request."""
