"""A vocabulary in the form of GGUF files: texts, types, scores and merges by id."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.byte_level import SPACE
from sporelm.text.tokenizers.token_types import CONTROL, NORMAL, UNUSED, USER_DEFINED

Fields = dict[str, tuple[str, Any]]  # metadata key -> (type of the value: "u32", "[str]", ...; the value)
ADDED_SCORE, UNUSED_SCORE = -1000.0, -10000.0  # those of llama.cpp's converter
MAX_PADDING_TOKENS = 1 << 18  # ids without a token that may be padded: embeddings are padded, but not by more
# Added tokens that are control tokens whatever their file says, by llama.cpp's converter (does_token_look_special).
_CONTROL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_CONTROL_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass
class ConvertedVocabulary:
    """A folder's vocabulary in the form of GGUF files.

    model          the value of tokenizer.ggml.model
    tokens, types  by id; `scores` too for models that have them
    ids            the text in the folder's files -> id
    extra_fields   the additional fields of this model
    unknown        the id of the unknown token
    """

    model: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    extra_fields: Fields
    scores: list[float] | None = None
    unknown: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> Fields:
        """All fields of the vocabulary."""
        scores: Fields = {}
        if self.scores is not None:
            scores["tokenizer.ggml.scores"] = ("[f32]", np.array(self.scores, np.float32))
        return {
            "tokenizer.ggml.model": ("str", self.model),
            "tokenizer.ggml.pre": ("str", "default"),
            "tokenizer.ggml.tokens": ("[str]", self.tokens),
            **scores,
            "tokenizer.ggml.token_type": ("[i32]", np.array(self.types, np.int32)),
            **self.extra_fields,
        }


class LibraryTokens:
    """The tokens of a tokenizer of the `tokenizers` library by their ids.

    texts    id -> text; None for an id without a token
    added    id -> the library's added token
    """

    def __init__(self, library_tokenizer: Any, num_rows: int | None, label: str) -> None:
        self.library_tokenizer = library_tokenizer
        self.label = label
        self.ids: dict[str, int] = library_tokenizer.get_vocab(with_added_tokens=True)
        self.added = library_tokenizer.get_added_tokens_decoder()
        num_tokens = max(self.ids.values(), default=-1) + 1
        self.texts: list[str | None] = [None] * compute_padded_size(num_tokens, num_rows, label)
        for text, token in self.ids.items():
            self.texts[token] = text

    def convert(self) -> tuple[list[str], list[int]]:
        """Return texts and types: added tokens are control or user-defined, others normal, ids without one unused."""
        tokens, types = [], []
        for token, text in enumerate(self.texts):
            token_type = NORMAL
            if text is None:
                text = make_padding_text(token)
                token_type = UNUSED
            elif token in self.added:
                text, token_type = convert_added_token(text, self.added[token].special)
            tokens.append(text)
            types.append(token_type)
        return tokens, types


def compute_padded_size(num_tokens: int, num_rows: int | None, label: str) -> int:
    """Return the number of tokens in the file: as many as the embedding has rows, if that is known."""
    if num_rows is None:
        return num_tokens
    if not num_tokens <= num_rows <= num_tokens + MAX_PADDING_TOKENS:
        raise UnsupportedModel(
            f"{label}: the vocabulary does not fit the model's embedding (got {num_tokens} tokens, {num_rows} rows; a "
            f"GGUF file must have as many of both, and at most {MAX_PADDING_TOKENS} tokens are padded)"
        )
    return num_rows


def make_padding_text(token: int) -> str:
    """Return the text of an id without a token."""
    return f"[PAD{token}]"


def convert_added_token(text: str, special: bool) -> tuple[str, int]:
    """Return the text and the type of an added token."""
    looks_special = text in _CONTROL_TEXTS or any(text.startswith(a) and text.endswith(b) for a, b in _CONTROL_BRACKETS)
    if special or looks_special:
        return text, CONTROL
    return text.replace(SPACE, " "), USER_DEFINED


def read_merges(model: Mapping[str, Any], label: str) -> list[tuple[str, str]]:
    """Return the merges of a BPE model, best first; files write them as "a b" or as ["a", "b"]."""
    pairs = []
    for merge in model.get("merges") or []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ModelFileError(f"{label}: the merge {merge!r:.60} is not a pair of tokens")
        pairs.append((pair[0], pair[1]))
    return pairs
