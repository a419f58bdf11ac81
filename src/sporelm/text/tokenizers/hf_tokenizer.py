"""Loads the tokenizer of a Hugging Face folder, whichever of its possible files it has."""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.byte_level import find_missing_bytes
from sporelm.text.tokenizers.gguf_vocabulary import MAX_TOKENS
from sporelm.text.tokenizers.hf_decoder import make_hf_decoder
from sporelm.text.tokenizers.hf_folder import SENTENCEPIECE_NAMES, TokenizerFolder
from sporelm.text.tokenizers.hf_plamo import TOKENIZER_JSONL, load_hf_plamo
from sporelm.text.tokenizers.hf_post_processor import add_class_post_processor
from sporelm.text.tokenizers.hf_rwkv import RWKV_VOCABULARY, load_hf_rwkv
from sporelm.text.tokenizers.hf_sentencepiece import load_hf_sentencepiece
from sporelm.text.tokenizers.hf_tokenizer_json import (
    add_missing_tokens,
    build_library_tokenizer,
    load_library_tokenizer,
    read_tokenizer_json,
)
from sporelm.text.tokenizers.special_tokens import SpecialTokens, find_stop_ids
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizers_library import catch_library_errors

# Encoded to learn which ids the post-processor puts around a text.
_PROBE = "a"


def load_hf_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a Hugging Face folder.

    A tokenizer.json takes precedence over vocab.json with merges.txt and over vocab.txt, these over a SentencePiece
    model. Raises ModelNotFound without any of them, ModelFileError for files that are damaged or contradict each other.
    """
    folder = TokenizerFolder(path)
    file = path / "tokenizer.json"
    if file.is_file():
        with catch_library_errors(str(file)):
            return _build_tokenizer(load_library_tokenizer(file), str(file), folder)
    if (source := read_tokenizer_json(folder)) is not None:
        spec, file = source
        with catch_library_errors(str(file)):
            return _build_tokenizer(build_library_tokenizer(spec, str(file)), str(file), folder)
    if (path / TOKENIZER_JSONL).is_file():
        return load_hf_plamo(path)
    if (path / RWKV_VOCABULARY).is_file():
        return load_hf_rwkv(path / RWKV_VOCABULARY)
    for name in SENTENCEPIECE_NAMES:
        if (path / name).is_file():
            return load_hf_sentencepiece(path / name)
    files = "no tokenizer.json, no vocab.json with merges.txt, no vocab.txt, and no tokenizer.model"
    raise ModelNotFound(f"{path} has {files}")


def _build_tokenizer(library_tokenizer: Any, label: str, folder: TokenizerFolder) -> Tokenizer:
    add_missing_tokens(library_tokenizer, folder)
    names = folder.read_names()
    add_class_post_processor(library_tokenizer, folder.config, folder.model.get("model_type"), names)
    vocab_size = _find_vocab_size(library_tokenizer, label)
    added = library_tokenizer.get_added_tokens_decoder()
    spec = _read_decoding_parts(library_tokenizer, label)
    decoder = make_hf_decoder(library_tokenizer, spec.get("decoder"), added)
    return Tokenizer(
        library_tokenizer,
        None,
        decoder=decoder,
        special=_build_special_tokens(library_tokenizer, folder, added, vocab_size),
        chat_templates=folder.read_chat_templates(),
        vocab_size=vocab_size,
        missing_bytes=_find_missing_bytes(library_tokenizer, spec),
        skips_control_characters=True,
        label=label,
    )


def _build_special_tokens(
    library_tokenizer: Any, folder: TokenizerFolder, added: dict[int, Any], vocab_size: int
) -> SpecialTokens:
    names = folder.read_names()
    named_ids: dict[str, int] = {}
    for name, text in names.items():
        token = library_tokenizer.token_to_id(text)
        if token is not None:
            named_ids[name] = token
        elif name in ("bos_token", "eos_token"):
            raise ModelFileError(f"{folder.path}: the {name} {text[:60]!r} is not in the vocabulary")
    eos_ids = folder.read_ids("eos_token_id")
    bos_ids = folder.read_ids("bos_token_id")
    bos = named_ids.get("bos_token")
    if bos is None and "bos_token" not in folder.config and bos_ids and bos_ids[0] < vocab_size:
        bos = bos_ids[0]
    eos = named_ids.get("eos_token", eos_ids[0] if eos_ids and eos_ids[0] < vocab_size else None)
    control = {token for token, entry in added.items() if entry.special} | {
        token for token in (bos, eos) if token is not None
    }
    control_texts = {
        str(added[token].content if token in added else library_tokenizer.id_to_token(token)): token
        for token in control
    }
    prefix, suffix = _find_prefix_and_suffix(library_tokenizer)
    separator, has_pair_token_types = _find_separator(library_tokenizer, prefix, suffix)
    if (add_bos := folder.read_flag("add_bos_token")) is not None and bos is not None:
        prefix = [bos] if add_bos else [token for token in prefix if token != bos]
    if (add_eos := folder.read_flag("add_eos_token")) is not None and eos is not None:
        suffix = [eos] if add_eos else [token for token in suffix if token != eos]
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        stop_ids=find_stop_ids([eos, *eos_ids], control_texts),
        control=frozenset(control),
        prefix=tuple(prefix),
        suffix=tuple(suffix),
        separator=separator,
        has_pair_token_types=has_pair_token_types,
        names=names,
    )


def _find_prefix_and_suffix(library_tokenizer: Any) -> tuple[list[int], list[int]]:
    """Return the ids that the post-processor puts before and after a text."""
    plain = library_tokenizer.encode(_PROBE, add_special_tokens=False).ids
    full = library_tokenizer.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return [], []


def _find_separator(library_tokenizer: Any, prefix: list[int], suffix: list[int]) -> tuple[tuple[int, ...], bool]:
    """Return the ids that the post-processor puts between the texts of a pair, and whether the second text has another
    token type."""
    plain = library_tokenizer.encode(_PROBE, add_special_tokens=False).ids
    full = library_tokenizer.encode(_PROBE, _PROBE, add_special_tokens=True)
    start = len(prefix) + len(plain)
    stop = len(full.ids) - len(suffix) - len(plain)
    if full.ids != [*prefix, *plain, *full.ids[start:stop], *plain, *suffix]:
        return tuple(suffix), False
    has_pair_token_types = library_tokenizer.post_processor is not None and full.type_ids[stop] == 1
    return tuple(full.ids[start:stop]), has_pair_token_types


def _read_decoding_parts(library_tokenizer: Any, label: str) -> dict[str, Any]:
    """Return the parts of tokenizer.json that determine decoding; of the model, all but its tables."""
    spec: dict[str, Any] = {}
    try:
        for name in ("decoder", "pre_tokenizer"):
            component = getattr(library_tokenizer, name)
            spec[name] = None if component is None else json.loads(component.__getstate__())
        for name in ("unk_token", "byte_fallback"):
            spec[name] = getattr(library_tokenizer.model, name, None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{label}: its parts cannot be read: {summarize_error(error)}") from None
    return spec


def _find_missing_bytes(library_tokenizer: Any, spec: dict[str, Any]) -> bytes:
    """Return the bytes that a byte-level vocabulary without an unknown token would silently drop."""
    if '"ByteLevel"' not in json.dumps(spec["pre_tokenizer"]) or spec["unk_token"] is not None:
        return b""
    return find_missing_bytes(lambda character: library_tokenizer.token_to_id(character) is not None)


def _find_vocab_size(library_tokenizer: Any, label: str) -> int:
    vocab = library_tokenizer.get_vocab(with_added_tokens=True)
    if not vocab:
        raise ModelFileError(f"{label} has no tokens")
    text, token = max(vocab.items(), key=lambda entry: entry[1])
    if token >= MAX_TOKENS:  # tables have a row for each id
        raise ModelFileError(f"{label}: {text[:60]!r} has the id {token}, not 0 to {MAX_TOKENS - 1}")
    return token + 1
