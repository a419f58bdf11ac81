"""Text out of a stream of tokens, whole characters only."""

from codecs import getincrementaldecoder
from collections.abc import Iterable

from sporelm.text.token_bytes import ByteDecoding, CleanedDecoding, clean_until, cleaned
from sporelm.text.tokenizer import Tokenizer

_Utf8 = getincrementaldecoder("utf-8")
# Tokens held back for a character that stays incomplete: a character has at most four bytes, one a token.
_MAX_HELD = 8


class Detokenizer:
    """Turns ids into text one by one. What it gives out, put together, is what decoding all ids at once gives.

    Half a character is held back until its other half comes. The cost of a token does not depend on how many came
    before. One detokenizer serves one text.
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
        skip_special_tokens    leave control tokens out of the text, but for
        shown                  those that mark parts of it (`Dialect.shown_ids`)
        continues              the text goes on with another (an answer after its prompt): a leading space is kept
        """
        decoding = tokenizer.decoding
        self._cleans = isinstance(decoding, CleanedDecoding)
        self._decoding = decoding.raw if isinstance(decoding, CleanedDecoding) else decoding
        self._skipped = tokenizer.special.control - shown if skip_special_tokens else frozenset[int]()
        self._spaces = 0 if continues else tokenizer.decoding.leading_spaces
        self._bytes = isinstance(self._decoding, ByteDecoding)
        self._unclean = ""  # text that may still lose spaces
        self._utf8 = _Utf8("replace")
        self._before: list[int] = []  # tokens whose text is out already; they shape the text of the next
        self._held: list[int] = []

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is incomplete. An unknown id has no text."""
        if token in self._skipped:
            return ""
        if self._bytes:
            return self._strip(self._clean(self._utf8.decode(self._decoding.token_bytes(token))))
        self._held.append(token)
        text = self._beyond_before()
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._held) < _MAX_HELD:
            return ""
        return self._give(text)

    def push_all(self, tokens: Iterable[int]) -> str:
        """The text that several tokens complete."""
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        """What is held back, at the end of the text: half a character becomes U+FFFD."""
        if self._bytes:
            return self._strip(self._clean(self._utf8.decode(b"", final=True), final=True))
        return self._give(self._beyond_before()) if self._held else ""

    def _beyond_before(self) -> str:
        known = self._decoding.text(self._before) if self._before else ""
        return self._decoding.text(self._before + self._held)[len(known) :]

    def _give(self, text: str) -> str:
        if text:  # a token without text of its own still shapes the next one
            self._before, self._held = self._held, []
        elif len(self._held) >= _MAX_HELD:
            self._before, self._held = (self._before + self._held)[-_MAX_HELD:], []
        return text

    def _clean(self, text: str, *, final: bool = False) -> str:
        if not self._cleans:
            return text
        text = self._unclean + text
        end = len(text) if final else clean_until(text)
        self._unclean = text[end:]
        return cleaned(text[:end])

    def _strip(self, text: str) -> str:
        while self._spaces and text:
            if text[0] != " ":
                self._spaces = 0
            else:
                text, self._spaces = text[1:], self._spaces - 1
        return text
