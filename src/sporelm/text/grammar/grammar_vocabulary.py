"""A tokenizer's vocabulary in the forms that llguidance reads."""

from collections.abc import Iterable
from typing import Any
from weakref import ref

from sporelm.text.tokenizers.tokenizer import Tokenizer

MAX_TOKEN_BYTES = 32  # of a token tried by the greedy longest match
# Texts before a continuation: at least one of them does not merge with its beginning.
ANCHORS = ("", "x", "\n", ".")


class PlainVocabulary:
    """A vocabulary as plain data. It encodes texts by greedy longest match: enough for the trial of a grammar, where
    the choice among forced tokens does not matter."""

    def __init__(
        self, tokens: list[bytes], eos_token_id: int, bos_token_id: int | None, special_token_ids: list[int]
    ) -> None:
        """llguidance reads the attributes by these names."""
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self.bos_token_id = bos_token_id
        self.special_token_ids = special_token_ids
        self._ids: dict[bytes, int] = {}

    def __call__(self, text: bytes) -> list[int]:
        if not self._ids:
            self._ids = {token: number for number, token in enumerate(self.tokens) if token}
        ids = []
        start = 0
        while start < len(text):
            ends = range(min(len(text), start + MAX_TOKEN_BYTES), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break  # the rest is left to the grammar's next step
            ids.append(self._ids[text[start:end]])
            start = end
        return ids

    def to_llguidance(self, stop_ids: Iterable[int]) -> Any:
        """Return llguidance's own tokenizer; `stop_ids` end a text."""
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=sorted(stop_ids))


class TokenizerVocabulary(PlainVocabulary):
    """The vocabulary of a tokenizer, which encodes texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        super().__init__(
            [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
            min(tokenizer.stop_ids) if special.eos_id is None else special.eos_id,
            special.bos_id,
            sorted(special.control),
        )
        # llguidance keeps this as long as the cache entry of the tokenizer, which must not keep its own key alive.
        self._tokenizer = ref(tokenizer)

    def __call__(self, text: bytes) -> list[int]:
        """Return the ids of a text that continues another: without the prefix space that some tokenizers add."""
        continuation = text.decode("utf-8", "replace")
        for anchor in ANCHORS:
            anchor_ids = self._encode(anchor)
            ids = self._encode(anchor + continuation)
            rest = ids[len(anchor_ids) :]
            if ids[: len(anchor_ids)] == anchor_ids and b"".join(self.tokens[token] for token in rest) == text:
                return rest
        return []  # then no token is forced

    def _encode(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        return [] if tokenizer is None else tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def make_plain_vocabulary(tokenizer: Tokenizer) -> tuple[list[bytes], int, int | None, list[int], list[int]]:
    """Return a tokenizer's vocabulary as plain data: the arguments of PlainVocabulary, and the ids that end a text."""
    vocabulary = TokenizerVocabulary(tokenizer)
    return (
        vocabulary.tokens,
        vocabulary.eos_token_id,
        vocabulary.bos_token_id,
        vocabulary.special_token_ids,
        sorted(tokenizer.stop_ids),
    )
