"""Vocabularies of pieces with ▁ for a space, as GGUF files list them: SentencePiece's two kinds, and WordPiece."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.added_tokens import added_tokens
from sporelm.text.exchange.gguf_kinds import (
    ABSENT_SCORE,
    ADDED_SCORE,
    Fields,
    Listed,
    Vocabulary,
    absent,
    added_as,
    merges_of,
    padded,
)
from sporelm.text.gguf_vocabulary import Vocabulary as Checked
from sporelm.text.hf_folder import Folder
from sporelm.text.plamo_folder import LISTED, fields_for, metadata_of_folder
from sporelm.text.rwkv_folder import listed
from sporelm.text.sentencepiece_folder import extra_tokens, kind_of_folder
from sporelm.text.sentencepiece_model import BPE, SentencePieceModel
from sporelm.text.token_bytes import SPACE
from sporelm.text.token_types import BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

LARGEST_SCORE = float(np.finfo(np.float32).max)  # in which GGUF files hold them


def of_sentencepiece(path: Path, folder: Folder, model: SentencePieceModel, size: int | None) -> Vocabulary:
    """A tokenizer.model with the JSON files beside it: "llama" for BPE, "t5" for unigram models."""
    kind = kind_of_folder(folder)
    added = added_tokens(folder, model.pieces, extra_tokens(folder, model, kind), model.named)
    named = set(added.named.values())
    more = {token: text for token, text in added.texts.items() if token >= len(model.pieces) or token not in named}
    count = max(len(model.pieces), *(token + 1 for token in added.texts), 1)
    total = padded(count, size, str(path))
    unused = total - len(model.pieces)
    tokens = [*model.pieces, *(absent(len(model.pieces) + i) for i in range(unused))]
    scores, types = [*model.scores, *[ABSENT_SCORE] * unused], [*model.types, *[UNUSED] * unused]
    for token, text in more.items():
        tokens[token], types[token] = added_as(text, token in added.control)
        scores[token] = ADDED_SCORE
    ids = {piece: token for token, piece in enumerate(model.pieces)} | {text: i for i, text in added.texts.items()}
    prefixed = model.add_dummy_prefix and folder.flag("add_prefix_space") is not False
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", prefixed)}
    if model.kind != BPE:
        fields |= _unigram_fields(model.charsmap, model.remove_extra_whitespaces)
    found = "llama" if model.kind == BPE else "t5"
    return Vocabulary(found, tokens, types, ids, fields, scores, model.types.index(UNKNOWN))


def of_rwkv(folder: Folder, file: Path, size: int | None) -> Vocabulary:
    """ "rwkv", from the list that its folders have."""
    tokens, types = listed(folder, file)
    count = len(tokens)
    more = range(count, padded(count, size, str(file)))
    ids = {text: token for token, text in enumerate(tokens)}
    tokens, types = [*tokens, *map(absent, more)], [*types, *[UNUSED] * len(more)]
    return Vocabulary("rwkv", tokens, types, ids, {})


def of_scored_pieces(listed: Listed, spec: Mapping[str, Any], beside: SentencePieceModel | None) -> Vocabulary:
    """ "llama", from a tokenizer.json of BPE over characters.

    Scores are those of the tokenizer.model `beside` it where that has the same pieces; else a token is the better the
    earlier its first merge comes.
    """
    model = spec["model"]
    tokens, types = listed.typed()
    scores = _scores_beside(listed, beside) or _scores_of_merges(listed, model)
    unknown = listed.ids.get(model.get("unk_token") or "")
    for token, text in enumerate(listed.texts):
        if token in listed.added and token != unknown:
            scores[token] = min(scores[token], ADDED_SCORE)
        elif text is not None and model.get("byte_fallback") and _is_byte(text):
            types[token] = BYTE
    if unknown is not None:
        types[unknown] = UNKNOWN
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", _prefixes(spec))}
    return Vocabulary("llama", tokens, types, listed.ids, fields, scores, unknown)


def _scores_beside(listed: Listed, beside: SentencePieceModel | None) -> list[float] | None:
    if beside is None or beside.kind != BPE:
        return None
    own = [text for token, text in enumerate(listed.texts[: len(beside.pieces)]) if token not in listed.added]
    theirs = [text for token, text in enumerate(beside.pieces) if token not in listed.added]
    if own != theirs:
        return None
    return [*beside.scores, *[ABSENT_SCORE] * (len(listed.texts) - len(beside.pieces))]


def _scores_of_merges(listed: Listed, model: Mapping[str, Any]) -> list[float]:
    """Tokens numbered downwards in the order of their first merges, as SentencePiece numbers them when it learns."""
    order: dict[int, float] = {}
    for pair in merges_of(model, listed.label):
        token = listed.ids.get("".join(pair))
        if token is not None:
            order.setdefault(token, -float(len(order)))
    return [order.get(token, -float(len(order))) for token in range(len(listed.texts))]


def of_plamo(folder: Folder, size: int | None) -> Vocabulary:
    """ "plamo2", from a tokenizer.jsonl."""
    metadata, label = metadata_of_folder(folder), str(folder.path / LISTED)
    found = Checked(metadata, label)
    more = padded(len(found.tokens), size, label) - len(found.tokens)
    tokens = [*found.tokens, *(f"[PAD{number}]" for number in range(1, more + 1))]
    types, scores = [*found.types, *[UNUSED] * more], [*metadata["tokenizer.ggml.scores"], *[ADDED_SCORE] * more]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    return Vocabulary("plamo2", tokens, types, found.ids, fields_for(metadata), scores, unknown)


def of_unigram(listed: Listed, spec: Mapping[str, Any], beside: SentencePieceModel | None) -> Vocabulary:
    """ "t5", from a tokenizer.json."""
    model = spec["model"]
    if model.get("byte_fallback"):
        raise UnsupportedModel(f"{listed.label}: a unigram model that spells bytes has no place in a GGUF file")
    tokens, types = listed.typed()
    scores = [ADDED_SCORE if token in listed.added else ABSENT_SCORE for token in range(len(listed.texts))]
    try:
        for token, (_, score) in enumerate(model["vocab"]):
            scores[token] = float(score)
    except (TypeError, ValueError, IndexError):
        raise ModelFileError(f"{listed.label}: its vocabulary is no list of pieces and scores") from None
    if not all(abs(score) <= LARGEST_SCORE for score in scores):
        raise ModelFileError(f"{listed.label}: a score of its vocabulary is beyond {LARGEST_SCORE:.3g}")
    unknown = model.get("unk_id")
    if type(unknown) is int and 0 <= unknown < len(types):
        types[unknown] = UNKNOWN
    if beside is not None and listed.texts[: len(beside.pieces)] == beside.pieces:
        # Which pieces are control tokens, or unused ones, only the model says.
        types[: len(beside.types)] = beside.types
    charsmap, steps = b"", list(_steps(spec.get("normalizer"), "normalizers"))
    for step in steps:
        if step.get("type") == "Precompiled":
            charsmap = base64.b64decode(step.get("precompiled_charsmap") or "")
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", _prefixes(spec))}
    fields |= _unigram_fields(charsmap, _merges_spaces(spec))
    return Vocabulary("t5", tokens, types, listed.ids, fields, scores, unknown)


def _unigram_fields(charsmap: bytes, merges_spaces: bool) -> Fields:
    fields: Fields = {"tokenizer.ggml.remove_extra_whitespaces": ("bool", merges_spaces)}
    if charsmap:
        fields["tokenizer.ggml.precompiled_charsmap"] = ("[u8]", np.frombuffer(charsmap, np.uint8))
    return fields


def of_wordpiece(listed: Listed, spec: Mapping[str, Any]) -> Vocabulary:
    """ "bert": pieces that begin a word get a ▁, the ## of the others goes."""
    tokens, types = listed.typed()
    prefix = spec["model"].get("continuing_subword_prefix") or "##"
    for token, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (NORMAL, USER_DEFINED):
            tokens[token] = text.removeprefix(prefix) if text.startswith(prefix) else SPACE + text
    fields: Fields = {"tokenizer.ggml.token_type_count": ("u32", 2)}
    for step in _steps(spec.get("normalizer"), "normalizers"):
        if step.get("type") == "BertNormalizer":
            lowercase, accents = step.get("lowercase", True), step.get("strip_accents")
            fields["tokenizer.ggml.normalizer.lowercase"] = ("bool", bool(lowercase))
            fields["tokenizer.ggml.normalizer.strip_accents"] = (
                "bool",
                bool(lowercase if accents is None else accents),
            )
    unknown = listed.ids.get(spec["model"].get("unk_token") or "")
    if len(set(tokens)) != len(tokens):
        raise UnsupportedModel(f"{listed.label}: two of its tokens would be the same text in a GGUF file")
    return Vocabulary("bert", tokens, types, listed.ids, fields, unknown=unknown)


def _prefixes(spec: Mapping[str, Any]) -> bool:
    """Whether a space is put in front of a text."""
    for step in _steps(spec.get("normalizer"), "normalizers"):
        if step.get("type") == "Prepend" and step.get("prepend") == SPACE:
            return True
    for step in _steps(spec.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme")
            return scheme != "never" if scheme is not None else bool(step.get("add_prefix_space", True))
    return False


def _merges_spaces(spec: Mapping[str, Any]) -> bool:
    """Whether runs of spaces become one."""
    if any(step.get("type") == "WhitespaceSplit" for step in _steps(spec.get("pre_tokenizer"), "pretokenizers")):
        return True
    return any(
        step.get("type") == "Replace"
        and step.get("pattern") == {"Regex": " {2,}"}
        and step.get("content") in (" ", SPACE)
        for step in _steps(spec.get("normalizer"), "normalizers")
    )


def _steps(part: Any, key: str) -> list[Mapping[str, Any]]:
    """The steps of a part: those of a sequence, or the part itself."""
    steps = part.get(key) if isinstance(part, Mapping) and part.get("type") == "Sequence" else [part]
    return [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")
