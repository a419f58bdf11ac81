"""The requests of a page that are under way, so that a test can wait for the last one's end.

The stream of a conversation's events never ends, and does not count.
"""

import time
from typing import Any
from weakref import WeakKeyDictionary

_under_way: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()


def watch(page: Any) -> None:
    """Count the requests of a page from now on."""
    waited_for = _under_way[page] = set()
    page.on("request", lambda request: None if request.url.endswith("/events") else waited_for.add(request))
    page.on("requestfinished", lambda request: waited_for.discard(request))
    page.on("requestfailed", lambda request: waited_for.discard(request))


def wait_for_quiet(page: Any, seconds: float = 60) -> None:
    """Wait until nothing is under way, and nothing new begins at once."""
    quiet, end = 0, time.monotonic() + seconds
    while quiet < 3:
        page.wait_for_timeout(10)
        quiet = 0 if _under_way[page] else quiet + 1
        assert time.monotonic() < end, _under_way[page]
