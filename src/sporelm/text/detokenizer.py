"""The incremental detokenizer: text from a stream of tokens, complete characters only."""

from codecs import getincrementaldecoder
from collections.abc import Iterable

from sporelm.text.tokenizers.token_decoder import (
    ByteTokenDecoder,
    CleanupDecoder,
    clean_up_spaces,
    find_stable_length,
)
from sporelm.text.tokenizers.tokenizer import Tokenizer

_Utf8 = getincrementaldecoder("utf-8")
# Tokens held back for a character that stays incomplete: a character has at most four bytes, one per token.
_MAX_HELD_TOKENS = 8


class Detokenizer:
    """Turns ids into text one by one. The concatenated results equal decoding all ids at once.

    An incomplete character is held back until it is complete. The cost of a token does not depend on the number of
    tokens before it. One detokenizer serves one text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = False,
        shown: frozenset[int] = frozenset(),
        continues: bool = False,
    ) -> None:
        """
        skip_special_tokens    omit control tokens from the text
        shown                  control tokens to keep: markers of parts of an answer (`Dialect.shown_ids`)
        continues              the text continues another (an answer after its prompt): a leading space is kept
        """
        decoder = tokenizer.decoder
        self._cleans_up = isinstance(decoder, CleanupDecoder)
        self._decoder = decoder.inner if isinstance(decoder, CleanupDecoder) else decoder
        self._skipped = tokenizer.special.control - shown if skip_special_tokens else frozenset[int]()
        self._spaces_to_strip = 0 if continues else tokenizer.decoder.leading_spaces
        self._is_bytewise = isinstance(self._decoder, ByteTokenDecoder)
        self._pending_cleanup = ""  # text that may still lose spaces
        self._utf8 = _Utf8("replace")
        self._context: list[int] = []  # tokens whose text was returned; they affect the text of the next token
        self._held_tokens: list[int] = []

    def push(self, token: int) -> str:
        """Return the text that `token` completes; empty while a character is incomplete, and for an unknown id."""
        if token in self._skipped:
            return ""
        if self._is_bytewise:
            return self._strip(self._clean_up(self._utf8.decode(self._decoder.token_bytes(token))))
        self._held_tokens.append(token)
        text = self._decode_held()
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._held_tokens) < _MAX_HELD_TOKENS:
            return ""
        return self._release(text)

    def push_all(self, tokens: Iterable[int]) -> str:
        """Return the text that several tokens complete."""
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        """Return the text held back at the end: an incomplete character becomes U+FFFD."""
        if self._is_bytewise:
            return self._strip(self._clean_up(self._utf8.decode(b"", final=True), final=True))
        return self._release(self._decode_held()) if self._held_tokens else ""

    def _decode_held(self) -> str:
        context_text = self._decoder.decode(self._context) if self._context else ""
        return self._decoder.decode(self._context + self._held_tokens)[len(context_text) :]

    def _release(self, text: str) -> str:
        if text:  # a token without text of its own still affects the next one
            self._context = self._held_tokens
            self._held_tokens = []
        elif len(self._held_tokens) >= _MAX_HELD_TOKENS:
            self._context = (self._context + self._held_tokens)[-_MAX_HELD_TOKENS:]
            self._held_tokens = []
        return text

    def _clean_up(self, text: str, *, final: bool = False) -> str:
        if not self._cleans_up:
            return text
        text = self._pending_cleanup + text
        end = len(text) if final else find_stable_length(text)
        self._pending_cleanup = text[end:]
        return clean_up_spaces(text[:end])

    def _strip(self, text: str) -> str:
        while self._spaces_to_strip and text:
            if text[0] != " ":
                self._spaces_to_strip = 0
            else:
                text = text[1:]
                self._spaces_to_strip -= 1
        return text
