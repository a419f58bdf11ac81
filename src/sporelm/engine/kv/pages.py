"""The pool of pages: which are free, and how many sequences hold each of the others. Bookkeeping only, no memory."""

from collections.abc import Iterable

from sporelm.errors import BackendError
from sporelm.ops.attention import PAGE


class PagePool:
    """`count` pages of PAGE positions, numbered from 0, with the number of holders of each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders = [0] * count
        # A stack whose top is the page freed last, page 0 at first: memory is touched as late as possible.
        self.free = list(range(count - 1, -1, -1))

    def take(self) -> int:
        """A free page, now held once. Changes the pool. Raises BackendError if none is free: ask `num_free` before."""
        if not self.free:
            raise BackendError(f"all {self.count} pages are held; release some before taking one")
        page = self.free.pop()
        self.holders[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One holder more for each page. Changes the pool."""
        for page in pages:
            if not self.holders[page]:
                raise BackendError(f"page {page} is free and cannot be shared")
            self.holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page; those without any are free. Changes the pool."""
        for page in pages:
            if not self.holders[page]:
                raise BackendError(f"page {page} is free and cannot be released")
            self.holders[page] -= 1
            if not self.holders[page]:
                self.free.append(page)

    @property
    def num_free(self) -> int:
        return len(self.free)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Raise BackendError unless `tables`, the pages of every holder, account for each page. Changes nothing."""
        counted = [0] * self.count
        for table in tables:
            for page in table:
                counted[page] += 1
        for page, (held, found) in enumerate(zip(self.holders, counted, strict=True)):
            if held != found:
                raise BackendError(f"page {page} counts {held} holders, {found} hold it")
        idle = {page for page, held in enumerate(self.holders) if not held}
        if len(self.free) != len(idle) or set(self.free) != idle:
            raise BackendError(f"{len(self.free)} pages are listed as free, {len(idle)} have no holder")


def pages_for(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)
