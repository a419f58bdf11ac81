"""A queue that serves tenants in turns, so that one tenant's many items do not delay the items of others."""

from collections import OrderedDict, deque
from typing import Generic, TypeVar

MAX_REMEMBERED_TENANTS = 1024  # without waiting items, whose last turn is known

T = TypeVar("T")


class TenantQueue(Generic[T]):
    """First-in, first-out queues, one for each tenant. The tenant whose last turn was longest ago is served next, so
    that a new one waits for no other's second item. Not safe to share between threads without a lock."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[T]] = {}  # none empty, by their tenants' arrival
        self._turns: OrderedDict[str, int] = OrderedDict()  # the number of each tenant's last turn, ascending
        self._num_turns = 0
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
        tenant = min(self._queues, key=lambda name: self._turns.get(name, 0))
        item = self._queues[tenant].popleft()
        self._size -= 1
        if not self._queues[tenant]:
            del self._queues[tenant]
        self._num_turns += 1
        self._turns[tenant] = self._num_turns
        self._turns.move_to_end(tenant)
        if len(self._turns) > len(self._queues) + MAX_REMEMBERED_TENANTS:
            self._turns.popitem(last=False)
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
