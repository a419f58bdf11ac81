"""PLaMo's folders: a tokenizer.jsonl with a token's text, score and type on each line, read as GGUF metadata.

Meaning of the lines: the published tokenization_plamo.py; their form in metadata: llama.cpp's converter.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.gguf_plamo import load_gguf_plamo
from sporelm.text.tokenizers.gguf_vocabulary import MAX_TOKENS, GgufVocabulary
from sporelm.text.tokenizers.hf_folder import MAX_TOKENIZER_BYTES, TokenizerFolder, read_limited_bytes
from sporelm.text.tokenizers.token_types import BYTE, CONTROL, NORMAL, UNKNOWN
from sporelm.text.tokenizers.tokenizer import Tokenizer

TOKENIZER_JSONL = "tokenizer.jsonl"
TOKEN_TYPES = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE, "NORMAL": NORMAL}
GGUF_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
}
END_OF_TURN = "<|plamo:op|>"  # begins the next turn
PREFIX = "tokenizer.ggml."


def read_plamo_metadata(folder: TokenizerFolder) -> dict[str, Any]:
    """Return the vocabulary as GGUF metadata. Raises ModelFileError for a damaged one."""
    rows = _read_rows(folder.path / TOKENIZER_JSONL)
    tokens = [text for text, _, _ in rows]
    metadata: dict[str, Any] = {f"{PREFIX}model": "plamo2", f"{PREFIX}tokens": tokens}
    with np.errstate(over="ignore"):  # numbers beyond float32 are infinite
        metadata |= {f"{PREFIX}scores": np.array([score for _, score, _ in rows], np.float32)}
    metadata |= {f"{PREFIX}token_type": np.array([token_type for _, _, token_type in rows], np.int32)}
    ids = {text: token for token, text in enumerate(tokens)}
    named_ids = {
        f"{PREFIX}{GGUF_NAMES[name]}_token_id": ids.get(text)
        for name, text in folder.read_names().items()
        if name in GGUF_NAMES
    }
    named_ids |= {f"{PREFIX}eot_token_id": ids.get(END_OF_TURN)}
    metadata |= {
        f"{PREFIX}add_bos_token": folder.read_flag("add_bos_token") is not False,
        f"{PREFIX}add_eos_token": bool(folder.read_flag("add_eos_token")),
    }
    templates = {
        "tokenizer.chat_template" + f".{name}" * (name != "default"): source
        for name, source in folder.read_chat_templates().items()
    }
    return metadata | {key: token for key, token in named_ids.items() if token is not None} | templates


def load_hf_plamo(path: Path) -> Tokenizer:
    """Return the tokenizer of such a folder. Raises ModelFileError for a damaged one."""
    return load_gguf_plamo(read_plamo_metadata(TokenizerFolder(path)), str(path / TOKENIZER_JSONL))


def format_tokenizer_jsonl(vocabulary: GgufVocabulary) -> str:
    """Return the tokenizer.jsonl of a vocabulary."""
    names = {token_type: name for name, token_type in TOKEN_TYPES.items()}
    scores = vocabulary.metadata[f"{PREFIX}scores"]
    lines = (
        json.dumps([text, float(score), names.get(token_type, "NORMAL")], ensure_ascii=False)
        for text, score, token_type in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
    )
    return "".join(f"{line}\n" for line in lines)


def _read_rows(path: Path) -> list[tuple[str, float, int]]:
    """Return text, score and type of each token."""
    lines = [line for line in read_limited_bytes(path, MAX_TOKENIZER_BYTES).split(b"\n") if line.strip()]
    if len(lines) > MAX_TOKENS:
        raise ModelFileError(f"{path} has {len(lines)} tokens, more than {MAX_TOKENS}")
    return [_parse_row(path, number, line) for number, line in enumerate(lines)]


def _parse_row(path: Path, number: int, line: bytes) -> tuple[str, float, int]:
    try:
        row = json.loads(line, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: line {number + 1} is not JSON: {summarize_error(error)}") from None
    text, score, name = (*row, "NORMAL")[:3] if isinstance(row, list) and len(row) > 1 else (None, None, None)
    if not isinstance(text, str) or not isinstance(score, float) or not isinstance(name, str):
        raise ModelFileError(f"{path}: line {number + 1} is not a list of a token's text, score and type")
    if text.encode("utf-8", "ignore").decode() != text:
        raise ModelFileError(f"{path}: line {number + 1} contains half of a surrogate pair")
    default = CONTROL if text.startswith("<|plamo:") and text.endswith("|>") else NORMAL
    token_type = TOKEN_TYPES.get(name, NORMAL)
    return text, score, default if token_type == NORMAL else token_type


def make_plamo_fields(metadata: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """Return the GGUF fields of such vocabularies in addition to those of all kinds."""
    key = f"{PREFIX}eot_token_id"
    fields = {key: ("u32", metadata[key])} if key in metadata else {}
    return fields | {f"{PREFIX}add_space_prefix": ("bool", False)}
