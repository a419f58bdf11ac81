"""The allocator of KV pages: which are free, and how many sequences hold each of the others. Bookkeeping, no memory."""

from collections import OrderedDict
from collections.abc import Iterable

from sporelm.engine.kv.prefix_cache import PrefixCache
from sporelm.errors import BackendError
from sporelm.ops.paged_attention import PAGE


class PageAllocator:
    """`num_pages` pages of PAGE positions, numbered from 0, each with a reference count.

    A free page whose content is in the prefix cache can be found until it is allocated again. That happens only when
    no other page is free, and to the least recently used page first.
    """

    def __init__(self, num_pages: int, prefix_cache: PrefixCache) -> None:
        self.num_pages = num_pages
        self.prefix_cache = prefix_cache
        self.ref_counts = [0] * num_pages
        # A stack whose top is the page freed last, page 0 at first: memory is touched as late as possible.
        self.uncached = list(range(num_pages - 1, -1, -1))
        self.cached: OrderedDict[int, None] = OrderedDict()  # free pages of known content, least recently used first

    def allocate(self) -> int:
        """Return a free page with a reference count of 1. Changes the allocator.

        Raises BackendError if no page is free: check `num_free` first.
        """
        if self.uncached:
            page = self.uncached.pop()
        elif self.cached:
            page, _ = self.cached.popitem(last=False)
            self.prefix_cache.remove(page, is_evicted=True)
        else:
            raise BackendError(f"KV cache: no page is free (all {self.num_pages} are held). Release some first.")
        self.ref_counts[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """Add a holder to each page; a free page must be a cached one. Changes the allocator."""
        for page in pages:
            if not self.ref_counts[page]:
                if page not in self.cached:
                    raise BackendError(f"KV cache: page {page} is free and cannot be shared")
                del self.cached[page]
            self.ref_counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Remove a holder from each page; the last page becomes free first. Changes the allocator."""
        for page in reversed(list(pages)):
            if not self.ref_counts[page]:
                raise BackendError(f"KV cache: page {page} is free and cannot be released")
            self.ref_counts[page] -= 1
            if self.ref_counts[page]:
                continue
            if page in self.prefix_cache.hash_of_page:
                self.cached[page] = None
            else:
                self.uncached.append(page)

    def uncache_all(self) -> None:
        """Forget the content of all free pages. Changes the allocator and the prefix cache."""
        for page in self.cached:
            self.prefix_cache.remove(page)
        self.uncached += reversed(self.cached)
        self.cached.clear()

    @property
    def num_free(self) -> int:
        return len(self.uncached) + len(self.cached)

    def check_integrity(self, page_tables: Iterable[Iterable[int]]) -> None:
        """Raise BackendError unless `page_tables`, the pages of every holder, account for each page. Changes
        nothing."""
        counted = [0] * self.num_pages
        for page_table in page_tables:
            for page in page_table:
                counted[page] += 1
        for page, (expected, found) in enumerate(zip(self.ref_counts, counted, strict=True)):
            if expected != found:
                raise BackendError(f"KV cache: page {page} has a reference count of {expected}, but {found} holders")
        idle = {page for page, count in enumerate(self.ref_counts) if not count}
        if self.num_free != len(idle) or {*self.uncached, *self.cached} != idle:
            raise BackendError(f"KV cache: {self.num_free} pages are listed as free, but {len(idle)} have no holder")
        self.prefix_cache.check_integrity()
        if strays := [page for page in self.uncached if page in self.prefix_cache.hash_of_page]:
            raise BackendError(f"KV cache: page {strays[0]} is listed as uncached, but it is in the prefix cache")


def count_pages(num_positions: int) -> int:
    """Return the number of pages that hold `num_positions`."""
    return -(-num_positions // PAGE)
