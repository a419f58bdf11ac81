"""A queue that serves tenants round robin, so that one tenant's many items do not delay the items of others."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class TenantQueue(Generic[T]):
    """First-in, first-out queues, one for each tenant. Not safe to share between threads without a lock."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()  # none empty; the first is served next
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, item: T, tenant: str) -> None:
        """Append an item to the queue of its tenant."""
        self._queues.setdefault(tenant, deque()).append(item)
        self._size += 1

    def pop(self) -> T:
        """Remove and return the oldest item of the tenant whose turn it is. Raises IndexError if the queue is empty."""
        if not self._queues:
            raise IndexError("the queue is empty")
        tenant, queue = next(iter(self._queues.items()))
        item = queue.popleft()
        self._size -= 1
        if queue:
            self._queues.move_to_end(tenant)
        else:
            del self._queues[tenant]
        return item

    def evict_for(self, tenant: str) -> T | None:
        """Remove and return the newest item of the longest queue, to make room for an item of `tenant`. Return None if
        that queue would not be the longer one afterwards."""
        longest = max(self._queues, key=lambda name: len(self._queues[name]), default=None)
        own_length = len(self._queues.get(tenant, ()))
        if longest is None or len(self._queues[longest]) < own_length + 2:
            return None
        self._size -= 1
        return self._queues[longest].pop()

    def clear(self) -> list[T]:
        """Remove and return all items."""
        items = [item for queue in self._queues.values() for item in queue]
        self._queues.clear()
        self._size = 0
        return items
