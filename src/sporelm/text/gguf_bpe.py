"""Byte-level BPE tokenizers from the metadata of GGUF files.

Keys and token types: the GGUF specification (ggml docs/gguf.md), section "Tokenizer", and llama.cpp's llama-vocab.cpp.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.pre_tokenizers import PreTokenizer, pre_tokenizer
from sporelm.text.special_tokens import SpecialTokens, stop_ids
from sporelm.text.token_bytes import ByteDecoding, byte_alphabet, bytes_of_byte_level
from sporelm.text.tokenizer import Tokenizer, one_line

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # token types; 1 normal, 5 unused, 6 byte
MAX_TOKENS = 1 << 22
# Bytes that no UTF-8 text holds.
_NEVER_IN_UTF8 = {0xC0, 0xC1, *range(0xF5, 0x100)}

_NAMES = {
    "bos_token": ("tokenizer.ggml.bos_token_id",),
    "eos_token": ("tokenizer.ggml.eos_token_id",),
    "unk_token": ("tokenizer.ggml.unknown_token_id",),
    "sep_token": ("tokenizer.ggml.separator_token_id", "tokenizer.ggml.seperator_token_id"),
    "pad_token": ("tokenizer.ggml.padding_token_id",),
}


class Vocabulary:
    """The checked tokenizer entries of one file's metadata.

    tokens       id -> text, in the byte alphabet
    ids          text -> id
    types        id -> token type
    special      ids recognised in text as a whole: control, unknown and user-defined tokens
    """

    def __init__(self, metadata: Mapping[str, Any], label: str) -> None:
        self.metadata, self.label = metadata, label
        self.tokens = self._strings("tokenizer.ggml.tokens")
        if not 0 < len(self.tokens) <= MAX_TOKENS:
            raise self.fail(f"tokenizer.ggml.tokens holds {len(self.tokens)} tokens, not 1 to {MAX_TOKENS}")
        self.ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(self.ids) != len(self.tokens):
            again, first = next((i, self.ids[t]) for i, t in enumerate(self.tokens) if self.ids[t] != i)
            raise self.fail(f"tokenizer.ggml.tokens: {again} and {first} are the same token {self.shown(again)}")
        self.types = self._types()
        kinds = (UNKNOWN, CONTROL, USER_DEFINED)
        self.special = [token for token, kind in enumerate(self.types) if kind != 1 and kind in kinds]

    def fail(self, message: str) -> ModelFileError:
        return ModelFileError(f"{self.label}: {message}; the vocabulary is damaged")

    def shown(self, token: int) -> str:
        """A token as it appears in messages."""
        return repr(self.tokens[token][:60])

    def value(self, key: str, kind: type) -> Any:
        """The entry `key`, of type `kind`, or None where there is none."""
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise self.fail(f"{key} is a {type(value).__name__}, not a {kind.__name__}")
        return value

    def token_id(self, *keys: str) -> int | None:
        """The token that the first of `keys` present names, or None."""
        for key in keys:
            token: int | None = self.value(key, int)
            if token is not None:
                if not 0 <= token < len(self.tokens):
                    raise self.fail(f"{key} is {token}, outside the {len(self.tokens)} tokens")
                return token
        return None

    def merges(self) -> list[tuple[str, str]]:
        """The merges, best first; every result is a token."""
        lines = self._strings("tokenizer.ggml.merges")
        # One split for all is several times quicker than one for each; joined again they must be what they were.
        words = " ".join(lines).split(" ") if lines else []
        pairs = list(zip(words[::2], words[1::2], strict=False))
        if list(map(" ".join, pairs)) != lines:
            bad = next(line for line in lines if line.count(" ") != 1)
            raise self.fail(f"tokenizer.ggml.merges: {bad[:60]!r} is not two tokens with a space between")
        # The library says it when a part is unknown; an unknown result makes it panic.
        known = self.ids.__contains__
        if not all(map(known, map("".join, pairs))):
            bad = next(" ".join(pair) for pair in pairs if not known("".join(pair)))
            raise self.fail(f"tokenizer.ggml.merges: {bad[:60]!r} gives no token")
        return pairs

    def missing_bytes(self) -> bytes:
        """The bytes of UTF-8 texts that no token stands for."""
        alphabet = byte_alphabet()
        return bytes(b for b in range(256) if b not in _NEVER_IN_UTF8 and alphabet[b] not in self.ids)

    def _types(self) -> list[int]:
        key = "tokenizer.ggml.token_type"
        values = self.metadata.get(key)
        if values is None:
            named = {self.token_id(*keys) for keys in _NAMES.values()}
            return [CONTROL if token in named else 1 for token in range(len(self.tokens))]
        types = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(types, list) or (types and type(types[0]) is not int):
            raise self.fail(f"{key} is not an array of integers")
        if len(types) != len(self.tokens):
            raise self.fail(f"{key} has {len(types)} entries for {len(self.tokens)} tokens")
        return types

    def _strings(self, key: str) -> list[str]:
        values = self.metadata.get(key)
        if values is None:
            raise self.fail(f"{key} is missing")
        decode_all = getattr(values, "decode_all", None)
        strings: list[str] = decode_all() if decode_all else values
        if not isinstance(strings, list) or set(map(type, strings)) - {str}:
            raise self.fail(f"{key} is not an array of strings")
        return strings


def tokenizer_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer that the metadata of a GGUF file describes.

    Raises ModelFileError for a damaged vocabulary, UnsupportedModel for another kind than byte-level BPE.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelFileError(f"{label} holds no vocabulary (tokenizer.ggml.model); use a GGUF file that does")
    if model != "gpt2":
        raise UnsupportedModel(
            f"{label}: tokenizer model {str(model)[:60]!r} is not supported from GGUF; supported is 'gpt2' (byte-level "
            "BPE), and every tokenizer.json of a Hugging Face folder"
        )
    vocabulary = Vocabulary(metadata, label)
    cutter = pre_tokenizer(vocabulary.value("tokenizer.ggml.pre", str), label)
    # What the tokenizer keeps must not hold on to the vocabulary: its tables are large, and it keeps the file open.
    added = _added_tokens(vocabulary)
    parsing, merging = _build(vocabulary, added, cutter)
    return Tokenizer(
        parsing,
        lambda: _complete(merging, added, cutter, parse_special=False),
        decoding=ByteDecoding(_text_of(vocabulary.tokens), bytes_of_byte_level, plain=vocabulary.special),
        special=_special_tokens(vocabulary, cutter),
        chat_templates=_chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        missing_bytes=vocabulary.missing_bytes(),
        label=label,
    )


def _text_of(tokens: list[str]) -> Callable[[int], str | None]:
    return lambda token: tokens[token] if 0 <= token < len(tokens) else None


def _added_tokens(vocabulary: Vocabulary) -> list[Any]:
    """The tokens that are recognised as a whole, as `tokenizers` has them."""
    from tokenizers import AddedToken

    return [
        AddedToken(vocabulary.tokens[token], special=vocabulary.types[token] != USER_DEFINED, normalized=False)
        for token in vocabulary.special
        if vocabulary.tokens[token]
    ]


def _build(vocabulary: Vocabulary, added: list[Any], cutter: PreTokenizer) -> tuple[Any, Any]:
    """The tokenizer that parses special tokens, and the model within, which its plain twin shares."""
    from tokenizers.models import BPE

    merges = vocabulary.merges()
    try:
        model = BPE(vocab=vocabulary.ids, merges=merges, ignore_merges=cutter.ignore_merges)
        return _complete(model, added, cutter, parse_special=True), model
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is a BaseException
        raise vocabulary.fail(f"the vocabulary cannot be built: {one_line(error)}") from None


def _complete(model: Any, added: list[Any], cutter: PreTokenizer, *, parse_special: bool) -> Any:
    from tokenizers import Tokenizer as LibraryTokenizer

    tokenizer = LibraryTokenizer(model)
    tokenizer.pre_tokenizer = cutter.build()
    tokenizer.add_tokens(added)
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer


def _special_tokens(vocabulary: Vocabulary, cutter: PreTokenizer) -> SpecialTokens:
    tokens, types = vocabulary.tokens, vocabulary.types
    named = {name: vocabulary.token_id(*keys) for name, keys in _NAMES.items()}
    bos, eos = named["bos_token"], named["eos_token"]
    add_bos = vocabulary.value("tokenizer.ggml.add_bos_token", bool)
    add_eos = vocabulary.value("tokenizer.ggml.add_eos_token", bool)
    if add_bos is None:
        add_bos = cutter.adds_bos
    control = [token for token in vocabulary.special if types[token] != USER_DEFINED]
    turn_ends = [vocabulary.token_id(f"tokenizer.ggml.{kind}_token_id") for kind in ("eot", "eom")]
    return SpecialTokens(
        bos_id=bos,
        eos_id=eos,
        stop_ids=stop_ids([eos, *turn_ends], {tokens[token]: token for token in control}),
        control=frozenset(control),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if add_eos and eos is not None else (),
        names={name: tokens[token] for name, token in named.items() if token is not None},
    )


def _chat_templates(vocabulary: Vocabulary) -> dict[str, str]:
    key = "tokenizer.chat_template"
    found = {"default": vocabulary.value(key, str)}
    found["tool_use"] = vocabulary.value(f"{key}.tool_use", str)
    return {name: source for name, source in found.items() if source}
