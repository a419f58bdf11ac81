"""The tokens that the JSON files of a Hugging Face folder add to a SentencePiece model."""

from dataclasses import dataclass
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.tokenizers.hf_folder import TokenizerFolder
from sporelm.text.tokenizers.special_token_splitter import AddedToken, SpecialTokenSplitter

MAX_ID = 1 << 22


@dataclass(frozen=True)
class AddedVocabulary:
    """The added tokens, and the named ones.

    texts       id -> text
    control     ids matched only with parse_special
    named_ids   "bos_token", ... -> id; `names` -> text
    splitter    matches all of them; `plain_splitter` all but control tokens
    """

    texts: dict[int, str]
    control: frozenset[int]
    named_ids: dict[str, int]
    names: dict[str, str]
    splitter: SpecialTokenSplitter
    plain_splitter: SpecialTokenSplitter


def read_added_tokens(
    folder: TokenizerFolder, pieces: list[str], class_tokens: dict[str, int], default_names: dict[str, str]
) -> AddedVocabulary:
    """Return the added tokens of `folder`.

    pieces           those of the model, by id
    class_tokens     text -> id of tokens that the tokenizer's class adds
    default_names    "bos_token", ... -> text where the files give none

    Raises ModelFileError for files that are damaged or contradict each other.
    """
    entries: dict[int, dict[str, Any]] = {}
    for text, token in class_tokens.items():
        entries[token] = {"content": text, "special": True}
    for text, token in folder.read_json("added_tokens.json").items():
        if type(token) is not int:
            raise ModelFileError(f"{folder.path}: added_tokens.json gives {text[:60]!r} the id {token!r:.60}")
        entries[token] = {"content": text, "special": False}
    entries |= _read_decoder_entries(folder)
    for token, entry in entries.items():
        _check(token, entry, folder)
    added_ids = {entry["content"]: token for token, entry in entries.items()}
    if len(added_ids) != len(entries):
        raise ModelFileError(f"{folder.path}: two added tokens have the same text")
    piece_ids = {piece: token for token, piece in enumerate(pieces)}
    names = {name: text for name, text in default_names.items() if folder.config.get(name, text) is not None}
    names |= folder.read_names()
    named_ids: dict[str, int] = {}
    for name, text in names.items():
        named_id = added_ids.get(text, piece_ids.get(text))
        if named_id is not None:
            named_ids[name] = named_id
            flags = _read_named_entry(folder, name) | entries.get(named_id, {})
            entries[named_id] = flags | {"content": text, "special": True}
        elif name in ("bos_token", "eos_token"):
            raise ModelFileError(f"{folder.path}: the {name} {text[:60]!r} is not in the vocabulary")
    for text in _read_additional_special_tokens(folder):
        special_id = added_ids.get(text, piece_ids.get(text))
        if special_id is None:
            raise ModelFileError(f"{folder.path}: the special token {text[:60]!r} is not in the vocabulary")
        entries[special_id] = entries.get(special_id, {"content": text}) | {"special": True}
    return _build(entries, named_ids, {name: text for name, text in names.items() if name in named_ids})


def _build(entries: dict[int, dict[str, Any]], named_ids: dict[str, int], names: dict[str, str]) -> AddedVocabulary:
    control = frozenset(token for token, entry in entries.items() if entry.get("special"))
    added = {
        token: AddedToken(entry["content"], token, bool(entry.get("lstrip")), bool(entry.get("rstrip")))
        for token, entry in sorted(entries.items())
    }
    return AddedVocabulary(
        texts={token: entry["content"] for token, entry in entries.items()},
        control=control,
        named_ids=named_ids,
        names=names,
        splitter=SpecialTokenSplitter(added.values(), spaces=None),
        plain_splitter=SpecialTokenSplitter(
            [entry for token, entry in added.items() if token not in control], spaces=None
        ),
    )


def _read_decoder_entries(folder: TokenizerFolder) -> dict[int, dict[str, Any]]:
    entries = folder.config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not an object")
    try:
        return {int(key): dict(entry) for key, entry in entries.items()}
    except (TypeError, ValueError):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not a table of token ids") from None


def _check(token: int, entry: dict[str, Any], folder: TokenizerFolder) -> None:
    text = entry.get("content")
    if not isinstance(text, str) or not text:
        raise ModelFileError(f"{folder.path}: the added token {token} has no text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ModelFileError(
            f"{folder.path}: the added token {token}, {text[:60]!r}, contains half of a surrogate pair"
        )
    if not 0 <= token < MAX_ID:
        raise ModelFileError(f"{folder.path}: the added token {text[:60]!r} has the id {token}, not 0 to {MAX_ID - 1}")
    if entry.get("single_word"):
        raise UnsupportedModel(f"{folder.path}: the added token {text[:60]!r} is single_word, which is not supported")


def _read_named_entry(folder: TokenizerFolder, name: str) -> dict[str, Any]:
    """Return the entry of a named token in tokenizer_config.json or special_tokens_map.json; empty if it is a text."""
    for source in (folder.config, folder.special_map):
        if isinstance(value := source.get(name), dict):
            return dict(value)
    return {}


def _read_additional_special_tokens(folder: TokenizerFolder) -> list[str]:
    key = "additional_special_tokens"
    value = folder.config.get(key) or folder.special_map.get(key) or []
    entries = value if isinstance(value, list) else [None]
    texts = [entry.get("content") if isinstance(entry, dict) else entry for entry in entries]
    if not all(isinstance(text, str) for text in texts):
        raise ModelFileError(f"{folder.path}: {key} is not a list of strings")
    return [text for text in texts if text]
