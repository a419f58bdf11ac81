"""Requests that wait: urgent ones first, then those of whoever is served least."""

from collections import deque
from collections.abc import Callable, Iterator

from sporelm.engine.request import Request
from sporelm.errors import QueueFull

Line = tuple[int, str]  # priority, owner


class WaitingQueue:
    """A line of requests for each priority and owner, in the order of their arrival."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lines: dict[Line, deque[Request]] = {}

    def __len__(self) -> int:
        return sum(len(line) for line in self.lines.values())

    def __iter__(self) -> Iterator[Request]:
        for line in self.lines.values():
            yield from line

    def check_room(self) -> None:
        """Raise QueueFull if one more cannot wait."""
        if len(self) >= self.limit:
            raise QueueFull(f"{len(self)} requests wait already, which is the limit: try again later")

    def add(self, request: Request) -> None:
        """Let a request wait. Changes the queue. Raises QueueFull."""
        self.check_room()
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
