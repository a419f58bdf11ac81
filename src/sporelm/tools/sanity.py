"""Whether metadata makes sense: what it says of the tokenizer, of the model, and of itself."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sporelm.errors import ModelError
from sporelm.tools.file_types import FILE_TYPES
from sporelm.tools.findings import ERROR, WARNING, Finding
from sporelm.tools.sources import Source
from sporelm.weights.gguf import StringArray

KEY = re.compile(r"[a-z0-9_.-]+")
TOKENS = "tokenizer.ggml.tokens"
BESIDE = {"tokenizer.ggml.scores": "f32", "tokenizer.ggml.token_type": "i32"}  # as long as the tokens
EMBEDDING = "token_embd.weight"
WORDS_MUST_BE = {"general.architecture": "str", "general.name": "str", "tokenizer.chat_template": "str"}


def metadata_findings(source: Source) -> list[Finding]:
    """What is wrong with the metadata of an open GGUF model."""
    return [*_of_keys(source), *_of_values(source), *_of_tokenizer(source)]


def _of_keys(source: Source) -> Iterator[Finding]:
    for key in source.metadata:
        if not KEY.fullmatch(key):
            yield Finding(WARNING, "metadata", key, "the key is not in lower case with dots, as the specification asks")
    for key, kind in WORDS_MUST_BE.items():
        if key in source.metadata and source.kinds[key] != kind:
            yield Finding(ERROR, "metadata", key, f"is of type {source.kinds[key]}, it must be {kind}")


def _of_values(source: Source) -> Iterator[Finding]:
    metadata = source.metadata
    if "general.architecture" not in metadata:
        yield Finding(ERROR, "metadata", "general.architecture", "is missing; no reader can tell what model this is")
    elif isinstance(name := metadata["general.architecture"], str) and not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        yield Finding(WARNING, "metadata", "general.architecture", f"{name[:80]!r} is not a name in lower case")
    file_type = metadata.get("general.file_type", 0)
    if not isinstance(file_type, int) or file_type & ~1024 not in FILE_TYPES:
        yield Finding(WARNING, "metadata", "general.file_type", f"{str(file_type)[:80]} is not a known file type")
    for key, value in metadata.items():
        if isinstance(value, float) and not np.isfinite(value):
            yield Finding(ERROR, "metadata", key, f"is {value}")
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
            yield Finding(ERROR, "metadata", key, f"holds {int((~np.isfinite(value)).sum())} values NaN or infinite")
        elif isinstance(value, str) and "\0" in value:
            yield Finding(WARNING, "metadata", key, "holds a zero byte, where readers in C end the text")
        elif isinstance(value, StringArray):
            try:
                value.decode_all()
            except ModelError as reason:
                yield Finding(ERROR, "metadata", key, str(reason).rpartition(": ")[2])


def _of_tokenizer(source: Source) -> Iterator[Finding]:
    metadata = source.metadata
    tokens = metadata.get(TOKENS)
    if tokens is None:
        if "tokenizer.ggml.model" in metadata and metadata["tokenizer.ggml.model"] not in ("none", "no_vocab"):
            yield Finding(ERROR, "tokenizer", TOKENS, "is missing though there is a tokenizer")
        return
    if not isinstance(tokens, StringArray):
        yield Finding(ERROR, "tokenizer", TOKENS, f"is of type {source.kinds[TOKENS]}, it must be [str]")
        return
    count = len(tokens)
    yield from _of_token_arrays(source, count)
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id") and not _is_id(value, count):
            yield Finding(ERROR, "tokenizer", key, f"is {str(value)[:40]}, there are {count} tokens")
    yield from _of_texts(tokens, metadata.get("tokenizer.ggml.token_type"))
    embedding = source.tensors.get(EMBEDDING)
    if embedding is not None and len(embedding.shape) == 2 and embedding.shape[0] != count:
        level = ERROR if embedding.shape[0] < count else WARNING  # rows beyond the tokens are padding
        yield Finding(level, "tokenizer", EMBEDDING, f"has {embedding.shape[0]} rows, the tokenizer {count} tokens")


def _of_token_arrays(source: Source, count: int) -> Iterator[Finding]:
    for key, kind in BESIDE.items():
        value = source.metadata.get(key)
        if value is None:
            continue
        if source.kinds[key] not in (f"[{kind}]", "[u32]"):
            yield Finding(ERROR, "tokenizer", key, f"is of type {source.kinds[key]}, it must be [{kind}]")
        elif len(value) != count:
            yield Finding(ERROR, "tokenizer", key, f"has {len(value)} entries, there are {count} tokens")
        elif kind == "i32" and count and not 0 <= int(value.min()) <= int(value.max()) <= 6:
            yield Finding(ERROR, "tokenizer", key, "holds a type of token that is not 0 to 6")
    merges = source.metadata.get("tokenizer.ggml.merges")
    if merges is not None and not isinstance(merges, StringArray):
        yield Finding(ERROR, "tokenizer", "tokenizer.ggml.merges", "is not an array of strings")


def _of_texts(tokens: StringArray, types: Any) -> Iterator[Finding]:
    """Tokens of one text: two that are alike make the reverse way ambiguous."""
    try:
        texts = tokens.decode_all()
    except ModelError:
        return  # found among the values already
    twice = len(texts) - len(set(texts))
    if twice:
        yield Finding(WARNING, "tokenizer", TOKENS, f"{twice} tokens have the text of another one")
    empty = sum(not text for text in texts)
    if empty:
        yield Finding(WARNING, "tokenizer", TOKENS, f"{empty} tokens are empty")


def _is_id(value: Any, count: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < count
