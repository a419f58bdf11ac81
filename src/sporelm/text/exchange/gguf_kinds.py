"""A Hugging Face folder's tokens as GGUF files list them: texts, types, scores and merges by kind of vocabulary."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.exchange.cutting_names import cutting_name
from sporelm.text.hf_folder import (
    MAX_TOKENIZER_BYTES,
    SENTENCEPIECE_NAMES,
    Folder,
    add_missing,
    bytes_of,
    library_of,
    read_spec,
)
from sporelm.text.library import guarded
from sporelm.text.plamo_folder import LISTED
from sporelm.text.rwkv_folder import FILE as RWKV_LIST
from sporelm.text.sentencepiece_model import SentencePieceModel, read_model
from sporelm.text.token_bytes import SPACE
from sporelm.text.token_types import CONTROL, NORMAL, UNUSED, USER_DEFINED

Fields = dict[str, tuple[str, Any]]  # a metadata key -> the kind of its value ("u32", "[str]", ...), and the value
ADDED_SCORE, ABSENT_SCORE = -1000.0, -10000.0  # as llama.cpp's converter has them
MOST_ABSENT = 1 << 18  # ids without a token that are given one: embeddings are padded, and not by more
# Added tokens that are control tokens whatever their file says, by llama.cpp's converter (does_token_look_special).
_CONTROL_TEXTS = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_CONTROL_ENDS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


@dataclass
class Vocabulary:
    """What a folder's tokenizer becomes.

    kind           the value of tokenizer.ggml.model
    tokens, types  by id; `scores` too where the kind has them
    ids            the text in the folder's files -> id
    unknown        the id of the unknown token
    more           the fields that this kind has besides
    """

    kind: str
    tokens: list[str]
    types: list[int]
    ids: dict[str, int]
    more: Fields
    scores: list[float] | None = None
    unknown: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def fields(self) -> Fields:
        scores: Fields = {}
        if self.scores is not None:
            scores["tokenizer.ggml.scores"] = ("[f32]", np.array(self.scores, np.float32))
        return {
            "tokenizer.ggml.model": ("str", self.kind),
            "tokenizer.ggml.pre": ("str", "default"),
            "tokenizer.ggml.tokens": ("[str]", self.tokens),
            **scores,
            "tokenizer.ggml.token_type": ("[i32]", np.array(self.types, np.int32)),
            **self.more,
        }


def read_vocabulary(path: Path, folder: Folder, size: int | None, pre: str | None) -> Vocabulary:
    """The vocabulary of the folder at `path`, as many tokens as `size` asks for. Raises what its files deserve."""
    spec = read_spec(path)
    if spec is None and (path / LISTED).is_file():
        from sporelm.text.exchange.gguf_pieces import of_plamo

        return of_plamo(folder, size)
    if spec is None and (path / RWKV_LIST).is_file():
        from sporelm.text.exchange.gguf_pieces import of_rwkv

        return of_rwkv(folder, path / RWKV_LIST, size)
    model = _sentencepiece(path)
    if spec is None:
        from sporelm.text.exchange.gguf_pieces import of_sentencepiece

        if model is None:
            raise ModelFileError(f"{path} has no tokenizer.json and no tokenizer.model; put the model's there")
        return of_sentencepiece(path, folder, model, size)
    label = str(path / ("tokenizer.json" if (path / "tokenizer.json").is_file() else "vocab.json"))
    with guarded(label):
        library = library_of(spec, label)
        add_missing(library, folder)
        listed = Listed(library, size, label)
        kind = type(library.model).__name__  # older files do not say it
        if kind == "BPE" and '"ByteLevel"' in str(_kinds_of(spec)):
            return _byte_level(listed, spec, pre)
        from sporelm.text.exchange import gguf_pieces

        if kind == "BPE":
            return gguf_pieces.of_scored_pieces(listed, spec, model)
        if kind == "Unigram":
            return gguf_pieces.of_unigram(listed, spec, model)
        if kind == "WordPiece":
            return gguf_pieces.of_wordpiece(listed, spec)
    raise UnsupportedModel(f"{label}: a model of type {str(kind)[:60]!r} has no place in a GGUF file")


class Listed:
    """The tokens of a tokenizer of the `tokenizers` library by their ids.

    texts    id -> text; None where no token has the id
    added    id -> the library's added token
    """

    def __init__(self, library: Any, size: int | None, label: str) -> None:
        self.library, self.label = library, label
        self.ids: dict[str, int] = library.get_vocab(with_added_tokens=True)
        self.added = library.get_added_tokens_decoder()
        count = max(self.ids.values(), default=-1) + 1
        self.texts: list[str | None] = [None] * padded(count, size, label)
        for text, token in self.ids.items():
            self.texts[token] = text

    def typed(self) -> tuple[list[str], list[int]]:
        """Texts and types: added tokens are control or user-defined tokens, others normal; ids without one unused."""
        tokens, types = [], []
        for token, text in enumerate(self.texts):
            kind = NORMAL
            if text is None:
                text, kind = absent(token), UNUSED
            elif token in self.added:
                text, kind = added_as(text, self.added[token].special)
            tokens.append(text)
            types.append(kind)
        return tokens, types


def padded(count: int, size: int | None, label: str) -> int:
    """How many tokens the file has: as many as the embedding has rows, `size`, where that is known."""
    if size is None:
        return count
    if not count <= size <= count + MOST_ABSENT:
        raise UnsupportedModel(
            f"{label} has {count} tokens, the model's embedding {size} rows: a GGUF file must have as many of both, and"
            f" at most {MOST_ABSENT} can be filled up"
        )
    return size


def absent(token: int) -> str:
    """What stands for an id that no token has."""
    return f"[PAD{token}]"


def added_as(text: str, special: bool) -> tuple[str, int]:
    """How an added token is written, and its type."""
    looks = text in _CONTROL_TEXTS or any(text.startswith(a) and text.endswith(b) for a, b in _CONTROL_ENDS)
    if special or looks:
        return text, CONTROL
    return text.replace(SPACE, " "), USER_DEFINED


def merges_of(model: Mapping[str, Any], label: str) -> list[tuple[str, str]]:
    """The merges of a BPE model, best first; files write them as "a b" or as ["a", "b"]."""
    pairs = []
    for merge in model.get("merges") or []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ModelFileError(f"{label}: the merge {merge!r:.60} is no pair of tokens")
        pairs.append((pair[0], pair[1]))
    return pairs


def _byte_level(listed: Listed, spec: Mapping[str, Any], pre: str | None) -> Vocabulary:
    """ "gpt2": byte-level BPE."""
    model = spec["model"]
    tokens, types = listed.typed()
    # GGUF keeps a merge as one text with a space in it, which the byte alphabet does not have.
    merges = [" ".join(part.replace(" ", "Ġ") for part in pair) for pair in merges_of(model, listed.label)]
    name = cutting_name(listed.library, spec, pre, listed.label)
    more: Fields = {"tokenizer.ggml.pre": ("str", name), "tokenizer.ggml.merges": ("[str]", merges)}
    notes = []
    normalizer = spec.get("normalizer")
    if normalizer is not None:
        kind = normalizer.get("type") if isinstance(normalizer, Mapping) else normalizer
        notes.append(f"text is not normalized ({str(kind)[:60]}) by readers of GGUF files")
    unknown = model.get("unk_token")
    return Vocabulary(
        "gpt2", tokens, types, listed.ids, more,
        unknown=listed.ids.get(unknown) if isinstance(unknown, str) else None, notes=tuple(notes),
    )  # fmt: skip


def _kinds_of(spec: Mapping[str, Any]) -> str:
    """Pre-tokenizer and decoder as text, in which kinds of steps can be looked for."""
    import json

    return json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])


def _sentencepiece(path: Path) -> SentencePieceModel | None:
    for name in SENTENCEPIECE_NAMES:
        if (path / name).is_file():
            return read_model(bytes_of(path / name, MAX_TOKENIZER_BYTES), str(path / name))
    return None
