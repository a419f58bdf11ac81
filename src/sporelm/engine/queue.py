"""Requests that wait: urgent ones first, then those of whoever is served least."""

from collections import deque
from collections.abc import Callable, Iterator

from sporelm.engine.request import Request
from sporelm.errors import QueueFull

Line = tuple[int, str]  # priority, owner


class WaitingQueue:
    """A line of requests for each priority and owner, in the order of their arrival.

    As many as `limit` wait. When there are so many, an owner who has less than an equal share of these may still add to
    it, up to twice as many in all: nobody fills the places of everybody.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lines: dict[Line, deque[Request]] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self.lines.values())

    def __iter__(self) -> Iterator[Request]:
        """All that wait. Any thread may ask: what changes meanwhile is copied first."""
        for line in list(self.lines.values()):
            yield from list(line)

    def check_room(self, owner: str) -> None:
        """Raise QueueFull if one more of an owner cannot wait."""
        if len(self) < self.limit:
            return
        own = sum(len(line) for (_, whose), line in self.lines.items() if whose == owner)
        owners = {whose for _, whose in self.lines} | {owner}
        if len(owners) == 1 or own >= self.limit // len(owners) or len(self) >= 2 * self.limit:
            raise QueueFull(f"{len(self)} requests wait already, and the limit is {self.limit}: try again later")

    def add(self, request: Request) -> None:
        """Let a request wait. Changes the queue. Raises QueueFull."""
        self.check_room(request.owner)
        self.lines.setdefault(line_of(request), deque()).append(request)

    def put_back(self, request: Request) -> None:
        """A request that ran waits again, before all others of its line. Changes the queue."""
        self.lines.setdefault(line_of(request), deque()).appendleft(request)

    def remove(self, request: Request) -> None:
        """Take a request out. Changes the queue."""
        line = self.lines[line_of(request)]
        line.remove(request)
        if not line:
            del self.lines[line_of(request)]

    def next(self, running: Callable[[str], int], ready: Callable[[Request], bool]) -> Request | None:
        """Whose turn it is: of the `ready` first ones of all lines, the most urgent, then the one whose owner has the
        fewest `running`, then the one that came first. Changes nothing."""
        heads = [line[0] for line in self.lines.values() if ready(line[0])]
        return min(heads, key=lambda head: (head.priority, running(head.owner), head.id), default=None)


def line_of(request: Request) -> Line:
    return request.priority, request.owner
