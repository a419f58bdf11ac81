"""Tokenizers from Hugging Face folders: tokenizer.json and the small files beside it."""

import json
from pathlib import Path
from typing import Any

from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.text.class_framing import frame
from sporelm.text.decoders import decoding_of
from sporelm.text.gguf_vocabulary import MAX_TOKENS
from sporelm.text.library import guarded, parse, refuse_panics, remember_words
from sporelm.text.special_tokens import SpecialTokens, stop_ids
from sporelm.text.token_bytes import missing_bytes
from sporelm.text.tokenizer import Tokenizer, one_line

MAX_TOKENIZER_BYTES = 512 << 20
MAX_SMALL_FILE_BYTES = 16 << 20
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What models call their SentencePiece model.
SENTENCEPIECE_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "spm.model")
# A text whose ids show what the post-processor puts around them.
_PROBE = "a"


class Folder:
    """The checked contents of one folder's small JSON files. A file that is absent counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = self.read("tokenizer_config.json")
        self.special_map = self.read("special_tokens_map.json")
        self.generation = self.read("generation_config.json")
        self.model = self.read("config.json")

    def read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        if not path.is_file():
            return {}
        try:
            value = json.loads(bytes_of(path, MAX_SMALL_FILE_BYTES))
        except (ValueError, RecursionError) as error:
            raise ModelFileError(f"{path} is not JSON: {one_line(error)}") from None
        if not isinstance(value, dict):
            raise ModelFileError(f"{path} holds a {type(value).__name__}, not an object")
        return value

    def names(self) -> dict[str, str]:
        """The text of "bos_token", "eos_token", ...; tokenizer_config.json decides before special_tokens_map.json."""
        found: dict[str, str] = {}
        for name in _NAMED:
            value = self.config[name] if name in self.config else self.special_map.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if value is None:
                continue
            if not isinstance(value, str):
                raise ModelFileError(f"{self.path}: {name} is a {type(value).__name__}, not a text")
            found[name] = value
        return found

    def ids(self, name: str) -> list[int]:
        """The ids that generation_config.json, or else config.json, gives for `name`: one, several or none. Models that
        see or hear may say it of their text model alone."""
        text = self.model.get("text_config")
        places = (self.generation, self.model, text if isinstance(text, dict) else {})
        value = next((held[name] for held in places if held.get(name) is not None), None)
        values = value if isinstance(value, list) else [] if value is None else [value]
        for token in values:
            if type(token) is not int or token < 0:
                raise ModelFileError(f"{self.path}: {name} holds {token!r:.60}, which is no token id")
        return values

    def flag(self, name: str) -> bool | None:
        """A yes or no of tokenizer_config.json; None where it does not say."""
        value = self.config.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelFileError(f"{self.path}: {name} is {value!r:.60}, not true or false")
        return value

    def chat_templates(self) -> dict[str, str]:
        """Name -> source; chat_template.jinja and additional_chat_templates/*.jinja decide before the JSON."""
        value = self.config.get("chat_template")
        found: dict[str, str] = {}
        if isinstance(value, str):
            found["default"] = value
        elif isinstance(value, list):
            for entry in value:
                if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
                    raise ModelFileError(f"{self.path}: an entry of chat_template has no name")
                if not isinstance(entry.get("template"), str):
                    raise ModelFileError(f"{self.path}: the chat template {entry['name'][:60]!r} is not a text")
                found[entry["name"]] = entry["template"]
        elif value is not None:
            raise ModelFileError(f"{self.path}: chat_template is a {type(value).__name__}, not a text")
        for path in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            found[path.stem] = _text_of(path)
        if (path := self.path / "chat_template.jinja").is_file():
            found["default"] = _text_of(path)
        return found


def tokenizer_of_folder(path: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder.

    A tokenizer.json decides before vocab.json with merges.txt or vocab.txt, these before a SentencePiece model. Raises
    ModelNotFound without any of them, ModelFileError for files that are damaged or contradict each other.
    """
    file = path / "tokenizer.json"
    if file.is_file():
        with guarded(str(file)):
            return _tokenizer(_load(file), str(file), Folder(path))
    from sporelm.text.vocabulary_files import spec_of_vocabulary_files
    from sporelm.text.wordpiece_files import spec_of_vocab_txt

    folder = Folder(path)
    spec, label = spec_of_vocabulary_files(folder), str(path / "vocab.json")
    if spec is None:
        spec, label = spec_of_vocab_txt(folder), str(path / "vocab.txt")
    if spec is not None:
        with guarded(label):
            return _tokenizer(library_of(spec, label), label, folder)
    from sporelm.text.plamo_folder import LISTED, plamo_of_folder
    from sporelm.text.rwkv_folder import FILE as RWKV_LIST
    from sporelm.text.rwkv_folder import rwkv_of_folder
    from sporelm.text.sentencepiece_folder import sentencepiece_of_folder

    if (path / LISTED).is_file():
        return plamo_of_folder(path)
    if (path / RWKV_LIST).is_file():
        return rwkv_of_folder(path / RWKV_LIST)
    for name in SENTENCEPIECE_NAMES:
        if (path / name).is_file():
            return sentencepiece_of_folder(path / name)
    lacking = "no tokenizer.json, no vocab.json with merges.txt, no vocab.txt, and no tokenizer.model"
    raise ModelNotFound(f"{path} has {lacking}")


def read_spec(path: Path) -> dict[str, Any] | None:
    """The tokenizer.json of a folder, or what vocab.json and merges.txt, or vocab.txt, amount to; None without them."""
    file = path / "tokenizer.json"
    if file.is_file():
        return _parsed(file, bytes_of(file, MAX_TOKENIZER_BYTES))
    from sporelm.text.vocabulary_files import spec_of_vocabulary_files
    from sporelm.text.wordpiece_files import spec_of_vocab_txt

    return spec_of_vocabulary_files(Folder(path)) or spec_of_vocab_txt(Folder(path))


def library_of(spec: dict[str, Any], label: str) -> Any:
    """The `tokenizers.Tokenizer` of a tokenizer.json's contents. To be called inside `guarded`."""
    refuse_panics(spec, label)
    return _unbound(parse(json.dumps(spec), label))


def _tokenizer(parsing: Any, label: str, folder: Folder) -> Tokenizer:
    add_missing(parsing, folder)
    frame(parsing, folder.config, folder.model.get("model_type"), folder.names())
    vocab_size = _vocab_size(parsing, label)
    added = parsing.get_added_tokens_decoder()
    spec = _spec_of(parsing, label)
    decoding = decoding_of(parsing, spec.get("decoder"), added)
    return Tokenizer(
        parsing,
        None,
        decoding=decoding,
        special=_special_tokens(parsing, folder, added, vocab_size),
        chat_templates=folder.chat_templates(),
        vocab_size=vocab_size,
        missing_bytes=_missing_bytes(parsing, spec),
        skips_control_characters=True,
        label=label,
    )


def _load(file: Path) -> Any:
    data = bytes_of(file, MAX_TOKENIZER_BYTES)
    refuse_panics(_parsed(file, data), str(file))  # which keeps none of it: it is large
    return _unbound(parse(data, str(file)))


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{file} is not JSON: {one_line(error)}") from None
    if not isinstance(spec, dict):
        raise ModelFileError(f"{file} holds a {type(spec).__name__}, not an object")
    return spec


def _unbound(tokenizer: Any) -> Any:
    tokenizer.encode_special_tokens = False
    remember_words(tokenizer)
    return tokenizer


def add_missing(tokenizer: Any, folder: Folder) -> None:
    """Add the tokens that only tokenizer_config.json knows; their ids must be the ones it gives."""
    from tokenizers import AddedToken

    entries = folder.config.get("added_tokens_decoder", {})
    if not isinstance(entries, dict):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not an object")
    try:
        tokens = sorted((int(key), entry["content"], entry) for key, entry in entries.items())
    except (KeyError, TypeError, ValueError):
        raise ModelFileError(f"{folder.path}: added_tokens_decoder is not a table of token ids") from None
    for token, content, entry in tokens:
        if not isinstance(content, str):
            raise ModelFileError(f"{folder.path}: added_tokens_decoder {token} has no text")
        known = tokenizer.token_to_id(content)
        if known is None:
            flags = {k: bool(entry.get(k)) for k in ("lstrip", "rstrip", "normalized", "single_word", "special")}
            tokenizer.add_tokens([AddedToken(content, **flags)])
            known = tokenizer.token_to_id(content)
        if known != token:
            raise ModelFileError(
                f"{folder.path}: {content[:60]!r} is token {known} in tokenizer.json but {token} beside it"
            )


def _special_tokens(parsing: Any, folder: Folder, added: dict[int, Any], vocab_size: int) -> SpecialTokens:
    names = folder.names()
    ids: dict[str, int] = {}
    for name, text in names.items():
        token = parsing.token_to_id(text)
        if token is not None:
            ids[name] = token
        elif name in ("bos_token", "eos_token"):
            raise ModelFileError(f"{folder.path}: the {name} {text[:60]!r} is not in the vocabulary")
    ends = folder.ids("eos_token_id")
    begins = folder.ids("bos_token_id")
    bos = ids.get("bos_token")
    if bos is None and "bos_token" not in folder.config and begins and begins[0] < vocab_size:
        bos = begins[0]
    eos = ids.get("eos_token", ends[0] if ends and ends[0] < vocab_size else None)
    control = {token for token, entry in added.items() if entry.special} | {
        token for token in (bos, eos) if token is not None
    }
    control_texts = {
        str(added[token].content if token in added else parsing.id_to_token(token)): token for token in control
    }
    prefix, suffix = _around(parsing)
    between, typed = _between(parsing, prefix, suffix)
    if (add_bos := folder.flag("add_bos_token")) is not None and bos is not None:
        prefix = [bos] if add_bos else [token for token in prefix if token != bos]
    if (add_eos := folder.flag("add_eos_token")) is not None and eos is not None:
        suffix = [eos] if add_eos else [token for token in suffix if token != eos]
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        stop_ids=stop_ids([eos, *ends], control_texts),
        control=frozenset(control),
        prefix=tuple(prefix),
        suffix=tuple(suffix),
        between=between,
        typed=typed,
        names=names,
    )


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    bare = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    full = tokenizer.encode(_PROBE, add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return full[:start], full[start + len(bare) :]
    return [], []


def _between(tokenizer: Any, prefix: list[int], suffix: list[int]) -> tuple[tuple[int, ...], bool]:
    """The ids that the post-processor puts between two texts, and whether the second has a token type of its own."""
    bare = tokenizer.encode(_PROBE, add_special_tokens=False).ids
    full = tokenizer.encode(_PROBE, _PROBE, add_special_tokens=True)
    start, stop = len(prefix) + len(bare), len(full.ids) - len(suffix) - len(bare)
    if full.ids != [*prefix, *bare, *full.ids[start:stop], *bare, *suffix]:
        return tuple(suffix), False
    return tuple(full.ids[start:stop]), tokenizer.post_processor is not None and full.type_ids[stop] == 1


def _spec_of(tokenizer: Any, label: str) -> dict[str, Any]:
    """The parts of tokenizer.json that say how ids become text; of the model, everything but its tables."""
    parts: dict[str, Any] = {}
    try:
        for name in ("decoder", "pre_tokenizer"):
            part = getattr(tokenizer, name)
            parts[name] = None if part is None else json.loads(part.__getstate__())
        for name in ("unk_token", "byte_fallback"):
            parts[name] = getattr(tokenizer.model, name, None)
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{label}: its parts cannot be read: {one_line(error)}") from None
    return parts


def _missing_bytes(tokenizer: Any, spec: dict[str, Any]) -> bytes:
    """Bytes that a byte-level vocabulary without an unknown token would silently leave out."""
    if '"ByteLevel"' not in json.dumps(spec["pre_tokenizer"]) or spec["unk_token"] is not None:
        return b""
    return missing_bytes(lambda character: tokenizer.token_to_id(character) is not None)


def _vocab_size(tokenizer: Any, label: str) -> int:
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    if not vocab:
        raise ModelFileError(f"{label} has no tokens")
    text, token = max(vocab.items(), key=lambda entry: entry[1])
    if token >= MAX_TOKENS:  # tables have a row for each id
        raise ModelFileError(f"{label}: {text[:60]!r} has the id {token}, not 0 to {MAX_TOKENS - 1}")
    return token + 1


def bytes_of(path: Path, limit: int) -> bytes:
    """The contents of a file. Raises ModelFileError for more than `limit` bytes."""
    size = path.stat().st_size
    if size > limit:
        raise ModelFileError(f"{path} has {size} bytes, more than the {limit} that such a file may have")
    return path.read_bytes()


def _text_of(path: Path) -> str:
    try:
        return bytes_of(path, MAX_SMALL_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise ModelFileError(f"{path} is not UTF-8") from None
