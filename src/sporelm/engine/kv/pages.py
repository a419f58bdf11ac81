"""The pool of pages: which are free, and how many sequences hold each of the others. Bookkeeping only, no memory."""

from collections import OrderedDict
from collections.abc import Iterable

from sporelm.engine.kv.prefix import PrefixIndex
from sporelm.errors import BackendError
from sporelm.ops.attention import PAGE


class PagePool:
    """`count` pages of PAGE positions, numbered from 0, with the number of holders of each.

    A free page whose content is known stays findable by it until it is taken for something else, which happens to the
    longest unused first, and only when no other page is free.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders = [0] * count
        self.index = PrefixIndex()
        # A stack whose top is the page freed last, page 0 at first: memory is touched as late as possible.
        self.blank = list(range(count - 1, -1, -1))
        self.kept: OrderedDict[int, None] = OrderedDict()  # free pages of known content, the longest unused first

    def take(self) -> int:
        """A free page, now held once. Changes the pool. Raises BackendError if none is free: ask `num_free` before."""
        if self.blank:
            page = self.blank.pop()
        elif self.kept:
            page, _ = self.kept.popitem(last=False)
            self.index.forget(page, evicted=True)
        else:
            raise BackendError(f"all {self.count} pages are held; release some before taking one")
        self.holders[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One holder more for each page, of those free only pages of known content. Changes the pool."""
        for page in pages:
            if not self.holders[page]:
                if page not in self.kept:
                    raise BackendError(f"page {page} is free and cannot be shared")
                del self.kept[page]
            self.holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page; those without any are free, the last one to be taken first. Changes the
        pool."""
        for page in reversed(list(pages)):
            if not self.holders[page]:
                raise BackendError(f"page {page} is free and cannot be released")
            self.holders[page] -= 1
            if self.holders[page]:
                continue
            if page in self.index.keys:
                self.kept[page] = None
            else:
                self.blank.append(page)

    @property
    def num_free(self) -> int:
        return len(self.blank) + len(self.kept)

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
        if self.num_free != len(idle) or {*self.blank, *self.kept} != idle:
            raise BackendError(f"{self.num_free} pages are listed as free, {len(idle)} have no holder")
        self.index.check_integrity()
        if strays := [page for page in self.blank if page in self.index.keys]:
            raise BackendError(f"page {strays[0]} is listed as blank, and as known by its content")


def pages_for(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)
