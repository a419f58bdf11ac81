"""A bounded cache of words and their token ids."""

from collections.abc import Callable

MAX_WORDS = 1 << 16
MAX_WORD_CHARACTERS = 64


class WordCache(dict[str, tuple[int, ...]]):
    """Word -> ids, computed on first use. Only short words are cached, and only a limited number of them.

    Threads may share one: two that miss the same word compute the same ids.
    """

    def __init__(self, encode_word: Callable[[str], tuple[int, ...]]) -> None:
        super().__init__()
        self._encode_word = encode_word

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._encode_word(word)
        if len(word) <= MAX_WORD_CHARACTERS:
            if len(self) >= MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids
