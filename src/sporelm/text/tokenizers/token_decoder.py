"""Token decoders: from token ids to the bytes and the text they stand for."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from sporelm.errors import ModelFileError
from sporelm.text.tokenizers.tokenizer_json_errors import translate_library_error


class TokenDecoder(Protocol):
    """How ids become text."""

    leading_spaces: int  # how many spaces are stripped from the beginning of a text

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token; empty for an id without a token."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of several tokens, before leading spaces are stripped."""
        ...


class ByteTokenDecoder:
    """Concatenates the bytes of the tokens. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(
        self,
        get_token_text: Callable[[int], str | None],
        to_bytes: Callable[[str], bytes],
        *,
        verbatim_ids: Iterable[int] = (),
        leading_spaces: int = 0,
    ) -> None:
        """
        get_token_text    id -> the token as the vocabulary writes it; None for an id without a token
        to_bytes          that text -> the token's bytes
        verbatim_ids      ids of tokens whose text stands for itself
        """
        self.leading_spaces = leading_spaces
        self._get_token_text = get_token_text
        self._to_bytes = to_bytes
        self._verbatim_ids = frozenset(verbatim_ids)
        self._cache: dict[int, bytes] = {}

    def token_bytes(self, token: int) -> bytes:
        data = self._cache.get(token)
        if data is None:
            text = self._get_token_text(token)
            if text is None:
                data = b""
            else:
                data = text.encode("utf-8", "replace") if token in self._verbatim_ids else self._to_bytes(text)
            self._cache[token] = data
        return data

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


class CleanupDecoder:
    """Removes spaces before punctuation, as llama.cpp does for WordPiece (llama-vocab.cpp)."""

    def __init__(self, inner: ByteTokenDecoder) -> None:
        self.inner = inner
        self.leading_spaces = inner.leading_spaces

    def token_bytes(self, token: int) -> bytes:
        return self.inner.token_bytes(token)

    def decode(self, tokens: Sequence[int]) -> str:
        return clean_up_spaces(self.inner.decode(tokens))


_SPACE_BEFORE_PUNCTUATION = re.compile(" ([?!.,])")
_SPACE_BEFORE_ENDING = re.compile(" ('(?:s|m|re|ve))")


def clean_up_spaces(text: str) -> str:
    """Remove the spaces that splitting into words put before punctuation, around apostrophes and before endings."""
    return _SPACE_BEFORE_ENDING.sub(r"\1", _SPACE_BEFORE_PUNCTUATION.sub(r"\1", text).replace(" ' ", "'"))


def find_stable_length(text: str) -> int:
    """Return how much of `text` is cleaned up in the same way whatever follows.

    A change begins at a space or an apostrophe and extends at most three characters beyond it. It neither extends over
    four other characters, nor from another character over the space after it.
    """
    match = _STABLE.match(text)
    return match.end() if match else 0


_STABLE = re.compile("(?s).*(?:[^ ']{4}|[^ '](?= ))")


class LibraryDecoder:
    """Decodes with the `tokenizers` library, for vocabularies whose tokens depend on their neighbors."""

    leading_spaces = 0

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def token_bytes(self, token: int) -> bytes:
        return self.decode([token]).encode("utf-8", "replace")

    def decode(self, tokens: Sequence[int]) -> str:
        try:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
        except OverflowError:  # ids beyond 32 bits have no token
            return ""
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of the library is a BaseException
            raise ModelFileError(f"the tokenizer fails on tokens: {translate_library_error(str(error))}") from None
