"""Converts the vocabulary of a Hugging Face folder to that of a GGUF file, by the kind of its model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.conversion import pieces_to_gguf
from sporelm.text.tokenizers.conversion.converted_vocabulary import (
    ConvertedVocabulary,
    Fields,
    LibraryTokens,
    read_merges,
)
from sporelm.text.tokenizers.conversion.pre_tokenizer_names import find_pre_tokenizer_name
from sporelm.text.tokenizers.hf_folder import (
    MAX_TOKENIZER_BYTES,
    SENTENCEPIECE_NAMES,
    TokenizerFolder,
    read_limited_bytes,
)
from sporelm.text.tokenizers.hf_plamo import TOKENIZER_JSONL
from sporelm.text.tokenizers.hf_rwkv import RWKV_VOCABULARY
from sporelm.text.tokenizers.hf_tokenizer_json import (
    add_missing_tokens,
    build_library_tokenizer,
    read_tokenizer_json,
)
from sporelm.text.tokenizers.sentencepiece_model import SentencePieceModel, parse_sentencepiece_model
from sporelm.text.tokenizers.tokenizers_library import catch_library_errors


def convert_vocabulary(folder: TokenizerFolder, num_rows: int | None, pre: str | None) -> ConvertedVocabulary:
    """Return the vocabulary of a folder, padded to `num_rows` tokens. Raises ModelFileError for damaged files,
    UnsupportedModel for a vocabulary that GGUF files cannot hold."""
    path = folder.path
    source = read_tokenizer_json(folder)
    if source is None and (path / TOKENIZER_JSONL).is_file():
        return pieces_to_gguf.convert_plamo(folder, num_rows)
    if source is None and (path / RWKV_VOCABULARY).is_file():
        return pieces_to_gguf.convert_rwkv(folder, path / RWKV_VOCABULARY, num_rows)
    sentencepiece = _read_sentencepiece_model(path)
    if source is None:
        if sentencepiece is None:
            raise ModelFileError(f"{path} has no tokenizer.json and no tokenizer.model; put the model's there")
        return pieces_to_gguf.convert_sentencepiece(folder, sentencepiece, num_rows)
    spec, file = source
    label = str(file)
    with catch_library_errors(label):
        library_tokenizer = build_library_tokenizer(spec, label)
        add_missing_tokens(library_tokenizer, folder)
        tokens = LibraryTokens(library_tokenizer, num_rows, label)
        kind = type(library_tokenizer.model).__name__  # older files do not give it
        if kind == "BPE" and '"ByteLevel"' in json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")]):
            return _convert_byte_level(tokens, spec, pre)
        if kind == "BPE":
            return pieces_to_gguf.convert_sentencepiece_bpe(tokens, spec, sentencepiece)
        if kind == "Unigram":
            return pieces_to_gguf.convert_unigram(tokens, spec, sentencepiece)
        if kind == "WordPiece":
            return pieces_to_gguf.convert_wordpiece(tokens, spec)
    raise UnsupportedModel(f"{label}: GGUF files cannot hold a tokenizer model of type {str(kind)[:60]!r}")


def _convert_byte_level(tokens: LibraryTokens, spec: Mapping[str, Any], pre: str | None) -> ConvertedVocabulary:
    """Convert byte-level BPE ("gpt2")."""
    model = spec["model"]
    texts, types = tokens.convert()
    # GGUF stores a merge as one text with a space in it, which the byte-level alphabet does not contain.
    merges = [" ".join(text.replace(" ", "Ġ") for text in pair) for pair in read_merges(model, tokens.label)]
    name = find_pre_tokenizer_name(tokens.library_tokenizer, spec, pre, tokens.label)
    fields: Fields = {"tokenizer.ggml.pre": ("str", name), "tokenizer.ggml.merges": ("[str]", merges)}
    notes = []
    normalizer = spec.get("normalizer")
    if normalizer is not None:
        kind = normalizer.get("type") if isinstance(normalizer, Mapping) else normalizer
        notes.append(f"the normalizer ({str(kind)[:60]}) is lost: readers of GGUF files do not normalize text")
    unknown = model.get("unk_token")
    return ConvertedVocabulary(
        "gpt2",
        texts,
        types,
        tokens.ids,
        fields,
        unknown=tokens.ids.get(unknown) if isinstance(unknown, str) else None,
        notes=tuple(notes),
    )


def _read_sentencepiece_model(path: Path) -> SentencePieceModel | None:
    for name in SENTENCEPIECE_NAMES:
        if (path / name).is_file():
            return parse_sentencepiece_model(read_limited_bytes(path / name, MAX_TOKENIZER_BYTES), str(path / name))
    return None
