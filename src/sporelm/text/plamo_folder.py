"""PLaMo's folders: a tokenizer.jsonl, whose lines are a token's text, score and kind; as metadata of a GGUF file.

What the lines mean: the published tokenization_plamo.py; how they are written into metadata: llama.cpp's converter.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sporelm.errors import ModelFileError
from sporelm.text.gguf_plamo import plamo_of_gguf
from sporelm.text.gguf_vocabulary import MAX_TOKENS, Vocabulary
from sporelm.text.hf_folder import MAX_TOKENIZER_BYTES, Folder, bytes_of
from sporelm.text.token_types import BYTE, CONTROL, NORMAL, UNKNOWN
from sporelm.text.tokenizer import Tokenizer, one_line

LISTED = "tokenizer.jsonl"
KINDS = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE, "NORMAL": NORMAL}
NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
}
TURN_END = "<|plamo:op|>"  # begins the next turn
PREFIX = "tokenizer.ggml."


def metadata_of_folder(folder: Folder) -> dict[str, Any]:
    """The vocabulary as a GGUF file has it. Raises ModelFileError for a damaged one."""
    rows = _rows(folder.path / LISTED)
    tokens = [text for text, _, _ in rows]
    found: dict[str, Any] = {f"{PREFIX}model": "plamo2", f"{PREFIX}tokens": tokens}
    with np.errstate(over="ignore"):  # numbers beyond float32 are infinite
        found |= {f"{PREFIX}scores": np.array([score for _, score, _ in rows], np.float32)}
    found |= {f"{PREFIX}token_type": np.array([kind for _, _, kind in rows], np.int32)}
    ids = {text: token for token, text in enumerate(tokens)}
    named = {f"{PREFIX}{NAMED[name]}_token_id": ids.get(text) for name, text in folder.names().items() if name in NAMED}
    named |= {f"{PREFIX}eot_token_id": ids.get(TURN_END)}
    adds = folder.flag("add_bos_token")
    found |= {f"{PREFIX}add_bos_token": adds is not False, f"{PREFIX}add_eos_token": bool(folder.flag("add_eos_token"))}
    templates = {
        "tokenizer.chat_template" + f".{name}" * (name != "default"): source
        for name, source in folder.chat_templates().items()
    }
    return found | {key: token for key, token in named.items() if token is not None} | templates


def plamo_of_folder(path: Path) -> Tokenizer:
    """The tokenizer of such a folder. Raises ModelFileError for a damaged one."""
    return plamo_of_gguf(metadata_of_folder(Folder(path)), str(path / LISTED))


def listed(vocabulary: Vocabulary) -> str:
    """The tokenizer.jsonl of a vocabulary."""
    words = {kind: word for word, kind in KINDS.items()}
    scores = vocabulary.metadata[f"{PREFIX}scores"]
    lines = (
        json.dumps([text, float(score), words.get(kind, "NORMAL")], ensure_ascii=False)
        for text, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
    )
    return "".join(f"{line}\n" for line in lines)


def _rows(path: Path) -> list[tuple[str, float, int]]:
    """Text, score and type of each token."""
    lines = [line for line in bytes_of(path, MAX_TOKENIZER_BYTES).split(b"\n") if line.strip()]
    if len(lines) > MAX_TOKENS:
        raise ModelFileError(f"{path} has {len(lines)} tokens, more than {MAX_TOKENS}")
    return [_row(path, number, line) for number, line in enumerate(lines)]


def _row(path: Path, number: int, line: bytes) -> tuple[str, float, int]:
    try:
        row = json.loads(line, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: line {number + 1} is not JSON: {one_line(error)}") from None
    text, score, kind = (*row, "NORMAL")[:3] if isinstance(row, list) and len(row) > 1 else (None, None, None)
    if not isinstance(text, str) or not isinstance(score, float) or not isinstance(kind, str):
        raise ModelFileError(f"{path}: line {number + 1} is no list of a token's text, its score and its kind")
    if text.encode("utf-8", "ignore").decode() != text:
        raise ModelFileError(f"{path}: line {number + 1} holds half of a surrogate pair")
    own = CONTROL if text.startswith("<|plamo:") and text.endswith("|>") else NORMAL
    found = KINDS.get(kind, NORMAL)
    return text, score, own if found == NORMAL else found


def fields_for(metadata: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """What GGUF files of such vocabularies have beside what those of all have."""
    key = f"{PREFIX}eot_token_id"
    ends = {key: ("u32", metadata[key])} if key in metadata else {}
    return ends | {f"{PREFIX}add_space_prefix": ("bool", False)}
