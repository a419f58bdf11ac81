"""The queue of requests that wait: urgent ones first, then those of the tenant with the fewest running requests."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sporelm.engine.request import Request
from sporelm.errors import QueueFull

QueueKey = tuple[int, str]  # priority, tenant
MAX_SKIPPED = 16  # requests of a queue that are not ready and are passed over; waiting for images does not count


class WaitingQueue:
    """A queue of requests for each priority and tenant, in the order of their arrival.

    `limit` requests may wait. When the queue is full, a tenant with less than an equal share of it may still add
    requests, up to twice the limit in all: no tenant can lock out the others.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queues: dict[QueueKey, deque[Request]] = {}

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.queues.values())

    def __iter__(self) -> Iterator[Request]:
        """Return all that wait. Any thread may call this: the queues are copied first."""
        for queue in list(self.queues.values()):
            yield from list(queue)

    def check_room(self, tenant: str) -> None:
        """Raise QueueFull if no further request of a tenant can wait."""
        if len(self) < self.limit:
            return
        num_waiting = sum(len(queue) for (_, each), queue in self.queues.items() if each == tenant)
        tenants = {each for _, each in self.queues} | {tenant}
        is_share_used = len(tenants) == 1 or num_waiting >= self.limit // len(tenants)
        if is_share_used or len(self) >= 2 * self.limit:
            raise QueueFull(f"{len(self)} requests wait already, and the limit is {self.limit}: try again later")

    def add(self, request: Request) -> None:
        """Queue a request. Changes the queue. Raises QueueFull, but not for a prompt of rows: its list has begun."""
        if request.output == "tokens":
            self.check_room(request.tenant)
        self.queues.setdefault(queue_key(request), deque()).append(request)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request, before all others of its priority and tenant. Changes the queue."""
        self.queues.setdefault(queue_key(request), deque()).appendleft(request)

    def remove(self, request: Request) -> None:
        """Take a request out. Changes the queue."""
        queue = self.queues[queue_key(request)]
        queue.remove(request)
        if not queue:
            del self.queues[queue_key(request)]

    def next(self, num_running: Callable[[str], int], is_ready: Callable[[Request], bool]) -> Request | None:
        """Return the request that runs next; None if none is ready. Changes nothing.

        Of the first ones of all queues that are ready (others may wait for their images) it is the most urgent, then
        the one whose tenant has the fewest `num_running`, then the one that came first.
        """
        heads = [head for queue in self.queues.values() if (head := _first_ready(queue, is_ready)) is not None]
        return min(heads, key=lambda head: (head.priority, num_running(head.tenant), head.id), default=None)


def _first_ready(queue: Iterable[Request], is_ready: Callable[[Request], bool]) -> Request | None:
    """Return the first request of a queue that is ready, beyond at most MAX_SKIPPED that wait for something else than
    images."""
    num_skipped = 0
    for request in queue:
        if is_ready(request):
            return request
        num_skipped += not request.images
        if num_skipped == MAX_SKIPPED:
            break
    return None


def queue_key(request: Request) -> QueueKey:
    """Return the queue of a request."""
    return request.priority, request.tenant
