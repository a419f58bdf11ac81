"""Converts vocabularies without merges to those of GGUF files: SentencePiece, WordPiece, PLaMo and RWKV."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.byte_level import SPACE
from sporelm.text.tokenizers.conversion.converted_vocabulary import (
    ADDED_SCORE,
    UNUSED_SCORE,
    ConvertedVocabulary,
    Fields,
    LibraryTokens,
    compute_padded_size,
    convert_added_token,
    make_padding_text,
    read_merges,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.hf_added_tokens import read_added_tokens
from sporelm.text.tokenizers.hf_folder import TokenizerFolder
from sporelm.text.tokenizers.hf_plamo import TOKENIZER_JSONL, make_plamo_fields, read_plamo_metadata
from sporelm.text.tokenizers.hf_rwkv import read_rwkv_vocabulary
from sporelm.text.tokenizers.hf_sentencepiece import check_tokenizer_class, find_extra_ids
from sporelm.text.tokenizers.sentencepiece_model import BPE, SentencePieceModel
from sporelm.text.tokenizers.token_types import BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED

MAX_SCORE = float(np.finfo(np.float32).max)  # GGUF files store scores as float32


def convert_sentencepiece(
    folder: TokenizerFolder, model: SentencePieceModel, num_rows: int | None
) -> ConvertedVocabulary:
    """Convert a tokenizer.model and the JSON files beside it: "llama" for BPE, "t5" for unigram models."""
    tokenizer_class = check_tokenizer_class(folder)
    added = read_added_tokens(folder, model.pieces, find_extra_ids(folder, model, tokenizer_class), model.named)
    named = set(added.named_ids.values())
    new = {token: text for token, text in added.texts.items() if token >= len(model.pieces) or token not in named}
    num_tokens = max(len(model.pieces), *(token + 1 for token in added.texts), 1)
    num_unused = compute_padded_size(num_tokens, num_rows, str(folder.path)) - len(model.pieces)
    tokens = [*model.pieces, *(make_padding_text(len(model.pieces) + i) for i in range(num_unused))]
    scores = [*model.scores, *[UNUSED_SCORE] * num_unused]
    types = [*model.types, *[UNUSED] * num_unused]
    for token, text in new.items():
        tokens[token], types[token] = convert_added_token(text, token in added.control)
        scores[token] = ADDED_SCORE
    ids = {piece: token for token, piece in enumerate(model.pieces)} | {text: i for i, text in added.texts.items()}
    adds_space = model.add_dummy_prefix and folder.read_flag("add_prefix_space") is not False
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", adds_space)}
    if model.kind != BPE:
        fields |= _make_unigram_fields(model.charsmap, model.remove_extra_whitespaces)
    name = "llama" if model.kind == BPE else "t5"
    return ConvertedVocabulary(name, tokens, types, ids, fields, scores, model.types.index(UNKNOWN))


def convert_rwkv(folder: TokenizerFolder, file: Path, num_rows: int | None) -> ConvertedVocabulary:
    """Convert the vocabulary file of RWKV's folders ("rwkv")."""
    tokens, types = read_rwkv_vocabulary(folder, file)
    padding = range(len(tokens), compute_padded_size(len(tokens), num_rows, str(file)))
    ids = {text: token for token, text in enumerate(tokens)}
    return ConvertedVocabulary(
        "rwkv", [*tokens, *map(make_padding_text, padding)], [*types, *[UNUSED] * len(padding)], ids, {}
    )


def convert_sentencepiece_bpe(
    tokens: LibraryTokens, spec: Mapping[str, Any], sentencepiece: SentencePieceModel | None
) -> ConvertedVocabulary:
    """Convert a tokenizer.json with BPE over characters ("llama").

    Scores are those of the tokenizer.model beside it if that has the same pieces. Otherwise the earlier a token's first
    merge, the higher its score.
    """
    model = spec["model"]
    texts, types = tokens.convert()
    scores = _copy_scores(tokens, sentencepiece) or _compute_scores(tokens, model)
    unknown = tokens.ids.get(model.get("unk_token") or "")
    for token, text in enumerate(tokens.texts):
        if token in tokens.added and token != unknown:
            scores[token] = min(scores[token], ADDED_SCORE)
        elif text is not None and model.get("byte_fallback") and _is_byte(text):
            types[token] = BYTE
    if unknown is not None:
        types[unknown] = UNKNOWN
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", _adds_prefix_space(spec))}
    return ConvertedVocabulary("llama", texts, types, tokens.ids, fields, scores, unknown)


def _copy_scores(tokens: LibraryTokens, sentencepiece: SentencePieceModel | None) -> list[float] | None:
    if sentencepiece is None or sentencepiece.kind != BPE:
        return None
    num_pieces = len(sentencepiece.pieces)
    texts = [text for token, text in enumerate(tokens.texts[:num_pieces]) if token not in tokens.added]
    pieces = [text for token, text in enumerate(sentencepiece.pieces) if token not in tokens.added]
    if texts != pieces:
        return None
    return [*sentencepiece.scores, *[UNUSED_SCORE] * (len(tokens.texts) - num_pieces)]


def _compute_scores(tokens: LibraryTokens, model: Mapping[str, Any]) -> list[float]:
    """Number the tokens downwards in the order of their first merges, as SentencePiece does when it is trained."""
    order: dict[int, float] = {}
    for pair in read_merges(model, tokens.label):
        token = tokens.ids.get("".join(pair))
        if token is not None:
            order.setdefault(token, -float(len(order)))
    return [order.get(token, -float(len(order))) for token in range(len(tokens.texts))]


def convert_plamo(folder: TokenizerFolder, num_rows: int | None) -> ConvertedVocabulary:
    """Convert the tokenizer.jsonl of PLaMo's folders ("plamo2")."""
    metadata = read_plamo_metadata(folder)
    label = str(folder.path / TOKENIZER_JSONL)
    vocabulary = GgufVocabulary(metadata, label)
    num_padding = compute_padded_size(len(vocabulary.tokens), num_rows, label) - len(vocabulary.tokens)
    tokens = [*vocabulary.tokens, *(f"[PAD{number}]" for number in range(1, num_padding + 1))]
    types = [*vocabulary.types, *[UNUSED] * num_padding]
    scores = [*metadata["tokenizer.ggml.scores"], *[ADDED_SCORE] * num_padding]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    return ConvertedVocabulary("plamo2", tokens, types, vocabulary.ids, make_plamo_fields(metadata), scores, unknown)


def convert_unigram(
    tokens: LibraryTokens, spec: Mapping[str, Any], sentencepiece: SentencePieceModel | None
) -> ConvertedVocabulary:
    """Convert a tokenizer.json with a unigram model ("t5")."""
    model = spec["model"]
    if model.get("byte_fallback"):
        raise UnsupportedModel(f"{tokens.label}: GGUF files cannot hold a unigram model with byte_fallback")
    texts, types = tokens.convert()
    scores = [ADDED_SCORE if token in tokens.added else UNUSED_SCORE for token in range(len(tokens.texts))]
    try:
        for token, (_, score) in enumerate(model["vocab"]):
            scores[token] = float(score)
    except (TypeError, ValueError, IndexError):
        raise ModelFileError(f"{tokens.label}: its vocabulary is not a list of pieces and scores") from None
    if not all(abs(score) <= MAX_SCORE for score in scores):
        raise ModelFileError(f"{tokens.label}: a score of its vocabulary is beyond {MAX_SCORE:.3g}")
    unknown = model.get("unk_id")
    if type(unknown) is int and 0 <= unknown < len(types):
        types[unknown] = UNKNOWN
    if sentencepiece is not None and tokens.texts[: len(sentencepiece.pieces)] == sentencepiece.pieces:
        # Only the SentencePiece model tells control tokens and unused ones apart.
        types[: len(sentencepiece.types)] = sentencepiece.types
    charsmap = b""
    for step in _flatten(spec.get("normalizer"), "normalizers"):
        if step.get("type") == "Precompiled":
            charsmap = base64.b64decode(step.get("precompiled_charsmap") or "")
    fields: Fields = {"tokenizer.ggml.add_space_prefix": ("bool", _adds_prefix_space(spec))}
    fields |= _make_unigram_fields(charsmap, _merges_spaces(spec))
    return ConvertedVocabulary("t5", texts, types, tokens.ids, fields, scores, unknown)


def _make_unigram_fields(charsmap: bytes, merges_spaces: bool) -> Fields:
    fields: Fields = {"tokenizer.ggml.remove_extra_whitespaces": ("bool", merges_spaces)}
    if charsmap:
        fields["tokenizer.ggml.precompiled_charsmap"] = ("[u8]", np.frombuffer(charsmap, np.uint8))
    return fields


def convert_wordpiece(tokens: LibraryTokens, spec: Mapping[str, Any]) -> ConvertedVocabulary:
    """Convert WordPiece ("bert"): tokens that begin a word get a ▁, the ## of the others is removed."""
    texts, types = tokens.convert()
    prefix = spec["model"].get("continuing_subword_prefix") or "##"
    for token, (text, token_type) in enumerate(zip(texts, types, strict=True)):
        if token_type in (NORMAL, USER_DEFINED):
            texts[token] = text.removeprefix(prefix) if text.startswith(prefix) else SPACE + text
    fields: Fields = {"tokenizer.ggml.token_type_count": ("u32", 2)}
    for step in _flatten(spec.get("normalizer"), "normalizers"):
        if step.get("type") == "BertNormalizer":
            lowercase = step.get("lowercase", True)
            strip_accents = step.get("strip_accents")
            fields["tokenizer.ggml.normalizer.lowercase"] = ("bool", bool(lowercase))
            fields["tokenizer.ggml.normalizer.strip_accents"] = (
                "bool",
                bool(lowercase if strip_accents is None else strip_accents),
            )
    unknown = tokens.ids.get(spec["model"].get("unk_token") or "")
    if len(set(texts)) != len(texts):
        raise UnsupportedModel(f"{tokens.label}: two of its tokens would be the same text in a GGUF file")
    return ConvertedVocabulary("bert", texts, types, tokens.ids, fields, unknown=unknown)


def _adds_prefix_space(spec: Mapping[str, Any]) -> bool:
    """Whether a space is put in front of a text."""
    for step in _flatten(spec.get("normalizer"), "normalizers"):
        if step.get("type") == "Prepend" and step.get("prepend") == SPACE:
            return True
    for step in _flatten(spec.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace":
            scheme = step.get("prepend_scheme")
            return scheme != "never" if scheme is not None else bool(step.get("add_prefix_space", True))
    return False


def _merges_spaces(spec: Mapping[str, Any]) -> bool:
    """Whether runs of spaces become one."""
    if any(step.get("type") == "WhitespaceSplit" for step in _flatten(spec.get("pre_tokenizer"), "pretokenizers")):
        return True
    return any(
        step.get("type") == "Replace"
        and step.get("pattern") == {"Regex": " {2,}"}
        and step.get("content") in (" ", SPACE)
        for step in _flatten(spec.get("normalizer"), "normalizers")
    )


def _flatten(component: Any, key: str) -> list[Mapping[str, Any]]:
    """Return the steps of a component: those of a sequence, or the component itself."""
    is_sequence = isinstance(component, Mapping) and component.get("type") == "Sequence"
    steps = component.get(key) if is_sequence else [component]
    return [step for step in steps if isinstance(step, Mapping)] if isinstance(steps, list) else []


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")
