"""Checks of metadata: keys, values and the tokenizer."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm.errors import ModelError
from sporelm.files.gguf import StringArray
from sporelm.tools.diagnostics import ERROR, WARNING, Diagnostic
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.model_files import ModelFiles

KEY = re.compile(r"[a-z0-9_.-]+")
TOKENS = "tokenizer.ggml.tokens"
TOKEN_ARRAYS = {"tokenizer.ggml.scores": "f32", "tokenizer.ggml.token_type": "i32"}  # as long as the tokens
EMBEDDING = "token_embd.weight"
REQUIRED_KINDS = {"general.architecture": "str", "general.name": "str", "tokenizer.chat_template": "str"}


def check_metadata(source: ModelFiles) -> list[Diagnostic]:
    """Return diagnostics for the metadata of an open GGUF model."""
    return [*_check_keys(source), *_check_values(source), *_check_tokenizer(source)]


def _check_keys(source: ModelFiles) -> Iterator[Diagnostic]:
    for key in source.metadata:
        if not KEY.fullmatch(key):
            yield Diagnostic(
                WARNING, "metadata", key, "the key is not in lower case with dots, as the specification asks"
            )
    for key, kind in REQUIRED_KINDS.items():
        if key in source.metadata and source.kinds[key] != kind:
            yield Diagnostic(ERROR, "metadata", key, f"is of type {source.kinds[key]}, it must be {kind}")


def _check_values(source: ModelFiles) -> Iterator[Diagnostic]:
    metadata = source.metadata
    if "general.architecture" not in metadata:
        yield Diagnostic(ERROR, "metadata", "general.architecture", "is missing; no reader can tell what model this is")
    elif isinstance(name := metadata["general.architecture"], str) and not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        yield Diagnostic(WARNING, "metadata", "general.architecture", f"{name[:80]!r} is not a name in lower case")
    file_type = metadata.get("general.file_type", 0)
    if not isinstance(file_type, int) or file_type & ~1024 not in FILE_TYPES:
        yield Diagnostic(WARNING, "metadata", "general.file_type", f"{str(file_type)[:80]} is not a known file type")
    for key, value in metadata.items():
        if isinstance(value, float) and not np.isfinite(value):
            yield Diagnostic(ERROR, "metadata", key, f"is {value}")
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            yield Diagnostic(ERROR, "metadata", key, f"holds {int((~np.isfinite(value)).sum())} values NaN or infinite")
        elif isinstance(value, str) and "\0" in value:
            yield Diagnostic(WARNING, "metadata", key, "holds a zero byte, where readers in C end the text")
        elif isinstance(value, StringArray):
            try:
                value.decode_all()
            except ModelError as reason:
                yield Diagnostic(ERROR, "metadata", key, str(reason).rpartition(": ")[2])


def _check_tokenizer(source: ModelFiles) -> Iterator[Diagnostic]:
    metadata = source.metadata
    tokens = metadata.get(TOKENS)
    if tokens is None:
        if "tokenizer.ggml.model" in metadata and metadata["tokenizer.ggml.model"] not in ("none", "no_vocab"):
            yield Diagnostic(ERROR, "tokenizer", TOKENS, "is missing though there is a tokenizer")
        return
    if not isinstance(tokens, StringArray):
        yield Diagnostic(ERROR, "tokenizer", TOKENS, f"is of type {source.kinds[TOKENS]}, it must be [str]")
        return
    count = len(tokens)
    yield from _check_token_arrays(source, count)
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and not _is_id(value, count):
            yield Diagnostic(ERROR, "tokenizer", key, f"is {str(value)[:40]}, there are {count} tokens")
    yield from _check_token_texts(tokens, metadata.get("tokenizer.ggml.token_type"))
    embedding = source.tensors.get(EMBEDDING)
    if embedding is not None and len(embedding.shape) == 2 and embedding.shape[0] != count:
        level = ERROR if embedding.shape[0] < count else WARNING  # rows beyond the tokens are padding
        yield Diagnostic(level, "tokenizer", EMBEDDING, f"has {embedding.shape[0]} rows, the tokenizer {count} tokens")


def _check_token_arrays(source: ModelFiles, count: int) -> Iterator[Diagnostic]:
    for key, kind in TOKEN_ARRAYS.items():
        value = source.metadata.get(key)
        if value is None:
            continue
        if source.kinds[key] not in (f"[{kind}]", "[u32]"):
            yield Diagnostic(ERROR, "tokenizer", key, f"is of type {source.kinds[key]}, it must be [{kind}]")
        elif len(value) != count:
            yield Diagnostic(ERROR, "tokenizer", key, f"has {len(value)} entries, there are {count} tokens")
        elif kind == "i32" and count and not 0 <= int(value.min()) <= int(value.max()) <= 6:
            yield Diagnostic(ERROR, "tokenizer", key, "holds a type of token that is not 0 to 6")
    merges = source.metadata.get("tokenizer.ggml.merges")
    if merges is not None and not isinstance(merges, StringArray):
        yield Diagnostic(ERROR, "tokenizer", "tokenizer.ggml.merges", "is not an array of strings")


def _check_token_texts(tokens: StringArray, types: Any) -> Iterator[Diagnostic]:
    """Tokens of one text: two that are alike make the reverse way ambiguous."""
    try:
        texts = tokens.decode_all()
    except ModelError:
        return  # found among the values already
    twice = len(texts) - len(set(texts))
    if twice:
        yield Diagnostic(WARNING, "tokenizer", TOKENS, f"{twice} tokens have the text of another one")
    empty = sum(not text for text in texts)
    if empty:
        yield Diagnostic(WARNING, "tokenizer", TOKENS, f"{empty} tokens are empty")


def _is_id(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
