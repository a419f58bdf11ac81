"""A bounded memory of words and their ids."""

from collections.abc import Callable

MAX_WORDS = 1 << 16
MAX_LENGTH = 64


class Known(dict[str, tuple[int, ...]]):
    """Word -> ids, found out when first asked for. Short words are kept, up to a number of them.

    Threads may share one: two that miss the same word find the same ids.
    """

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, word: str) -> tuple[int, ...]:
        found = self._find(word)
        if len(word) <= MAX_LENGTH:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = found
        return found
