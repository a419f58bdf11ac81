"""The tokens that the JSON files of a Hugging Face folder add to a SentencePiece model."""

from dataclasses import dataclass
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.fragments import Fragments, SpecialText
from sporelm.text.hf_folder import Folder

MAX_ID = 1 << 22


@dataclass(frozen=True)
class AddedTokens:
    """What was added, or named.

    texts      id -> text
    control    ids recognised in text only if asked for
    named      "bos_token", ... -> id; `names` -> text
    parsing    finds all of them; `plain` those that are not control tokens
    """

    texts: dict[int, str]
    control: frozenset[int]
    named: dict[str, int]
    names: dict[str, str]
    parsing: Fragments
    plain: Fragments


def added_tokens(folder: Folder, pieces: list[str], defaults: dict[str, int], usual: dict[str, str]) -> AddedTokens:
    """The added tokens of `folder`.

    pieces      the model's own, by id
    defaults    text -> id of tokens that the tokenizer's class adds
    usual       "bos_token", ... -> text where the files do not say

    Raises ModelFileError for files that are damaged or contradict each other.
    """
    entries: dict[int, dict[str, Any]] = {}
    for text, token in defaults.items():
        entries[token] = {"content": text, "special": True}
    for text, token in folder.read("added_tokens.json").items():
        if type(token) is not int:
            raise ModelFileError(f"{folder.path}: added_tokens.json gives {text[:60]!r} the id {token!r:.60}")
        entries[token] = {"content": text, "special": False}
    entries |= _decoder_entries(folder)
    for token, entry in entries.items():
        _check(token, entry, folder)
    ids = {entry["content"]: token for token, entry in entries.items()}
    if len(ids) != len(entries):
        raise ModelFileError(f"{folder.path}: two added tokens have the same text")
    own = {piece: token for token, piece in enumerate(pieces)}
    names = {name: text for name, text in usual.items() if folder.config.get(name, text) is not None} | folder.names()
    named: dict[str, int] = {}
    for name, text in names.items():
        found = ids.get(text, own.get(text))
        if found is not None:
            named[name] = found
            entries[found] = _entry_of(folder, name) | entries.get(found, {}) | {"content": text, "special": True}
        elif name in ("bos_token", "eos_token"):
            raise ModelFileError(f"{folder.path}: the {name} {text[:60]!r} is not in the vocabulary")
    for text in _more_special(folder):
        found = ids.get(text, own.get(text))
        if found is None:
            raise ModelFileError(f"{folder.path}: the special token {text[:60]!r} is not in the vocabulary")
        entries[found] = entries.get(found, {"content": text}) | {"special": True}
    return _collected(entries, named, {name: text for name, text in names.items() if name in named})


def _collected(entries: dict[int, dict[str, Any]], named: dict[str, int], names: dict[str, str]) -> AddedTokens:
    control = frozenset(token for token, entry in entries.items() if entry.get("special"))
    found = {
        token: SpecialText(entry["content"], token, bool(entry.get("lstrip")), bool(entry.get("rstrip")))
        for token, entry in sorted(entries.items())
    }
    return AddedTokens(
        texts={token: entry["content"] for token, entry in entries.items()},
        control=control,
        named=named,
        names=names,
        parsing=Fragments(found.values(), spaces=None),
        plain=Fragments([special for token, special in found.items() if token not in control], spaces=None),
    )


def _decoder_entries(folder: Folder) -> dict[int, dict[str, Any]]:
    entries = folder.config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not an object")
    try:
        return {int(key): dict(entry) for key, entry in entries.items()}
    except (TypeError, ValueError):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not a table of token ids") from None


def _check(token: int, entry: dict[str, Any], folder: Folder) -> None:
    text = entry.get("content")
    if not isinstance(text, str) or not text:
        raise ModelFileError(f"{folder.path}: the added token {token} has no text")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ModelFileError(f"{folder.path}: the added token {token}, {text[:60]!r}, holds half of a surrogate pair")
    if not 0 <= token < MAX_ID:
        raise ModelFileError(f"{folder.path}: the added token {text[:60]!r} has the id {token}, not 0 to {MAX_ID - 1}")
    if entry.get("single_word"):
        raise UnsupportedModel(f"{folder.path}: the added token {text[:60]!r} is single_word, which is not supported")


def _entry_of(folder: Folder, name: str) -> dict[str, Any]:
    """How special_tokens_map.json or tokenizer_config.json describes a named token; empty where by its text alone."""
    for source in (folder.config, folder.special_map):
        if isinstance(value := source.get(name), dict):
            return dict(value)
    return {}


def _more_special(folder: Folder) -> list[str]:
    key = "additional_special_tokens"
    value = folder.config.get(key) or folder.special_map.get(key) or []
    entries = value if isinstance(value, list) else [None]
    found = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    if not all(isinstance(text, str) for text in found):
        raise ModelFileError(f"{folder.path}: {key} is not a list of texts")
    return [text for text in found if text]
