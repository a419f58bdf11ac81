"""Converts the tokenizer of a Hugging Face folder to metadata of a GGUF file.

Keys: the GGUF specification, section "Tokenizer". Values: as llama.cpp's converter writes them (conversion/base.py,
gguf-py/gguf/vocab.py), so that llama.cpp reads from them what it would read from its own files.
"""

from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters, digits
from typing import NamedTuple

from sporelm.errors import RequestError, UnsupportedModel
from sporelm.text.tokenizers.byte_level import find_missing_bytes
from sporelm.text.tokenizers.conversion import tokenizer_comparison
from sporelm.text.tokenizers.conversion.converted_vocabulary import ConvertedVocabulary, Fields
from sporelm.text.tokenizers.conversion.vocabulary_to_gguf import convert_vocabulary
from sporelm.text.tokenizers.hf_folder import TokenizerFolder
from sporelm.text.tokenizers.load_tokenizer import load_gguf_tokenizer, load_tokenizer
from sporelm.text.tokenizers.special_tokens import END_OF_TURN_TEXTS
from sporelm.text.tokenizers.token_types import BYTE, CONTROL
from sporelm.text.tokenizers.tokenizer import Tokenizer

# Names of special tokens -> their names in GGUF keys ("seperator" is the spelling of the specification).
GGUF_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "sep_token": "seperator",
    "unk_token": "unknown",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


class ConvertedTokenizer(NamedTuple):
    """The metadata fields, and notes on what a GGUF file cannot express, one line each."""

    fields: Fields
    notes: tuple[str, ...]


def convert_tokenizer_to_gguf(path: Path, num_rows: int | None = None, pre: str | None = None) -> ConvertedTokenizer:
    """Return the fields of a folder's tokenizer.

    num_rows   rows of the model's embedding, to which the vocabulary is padded; None: no padding
    pre        a value for tokenizer.ggml.pre that the user chose

    The fields are read back and compared with the folder's tokenizer on some texts. Raises ModelNotFound without a
    tokenizer, ModelFileError for a damaged one, UnsupportedModel for one that GGUF files cannot describe.
    """
    tokenizer = load_tokenizer(path)
    folder = TokenizerFolder(path)
    vocabulary = convert_vocabulary(folder, num_rows, pre)
    if pre not in (None, "default") and vocabulary.model != "gpt2":
        raise RequestError(
            f"--pre {str(pre)[:60]}: not supported for the tokenizer of {path} (got tokenizer model "
            f"{vocabulary.model!r}; allowed --pre default)"
        )
    fields = vocabulary.fields | _make_named_id_fields(vocabulary, tokenizer, folder)
    fields |= _make_bos_eos_fields(vocabulary, tokenizer, str(path))
    notes = list(vocabulary.notes)
    has_unknown = vocabulary.model == "gpt2" and vocabulary.unknown is not None
    missing = find_missing_bytes(vocabulary.ids.__contains__) if has_unknown else b""
    if missing:
        notes.append(f"{len(missing)} bytes have no token; readers of GGUF files do not use the unknown token for them")
    if vocabulary.model == "llama" and BYTE not in vocabulary.types:
        notes.append("no tokens stand for bytes: llama.cpp fails on characters without a token")
    fields |= _convert_templates(tokenizer.chat_templates, notes)
    notes += _add_stop_ids(vocabulary, tokenizer, fields)
    converted = load_gguf_tokenizer({key: value for key, (_, value) in fields.items()}, f"{path}, as GGUF")
    text = tokenizer_comparison.find_difference(tokenizer.encode, converted.encode)
    if text is not None:
        message = f"{path}: its tokenizer encodes {text[:60]!r} to other ids than the GGUF file would"
        if pre is None and vocabulary.model != "bert":  # readers of GGUF files split its words in llama.cpp's way
            option = (
                "--pre NAME chooses another pre-tokenizer"
                if vocabulary.model == "gpt2"
                else "--pre default accepts the difference"
            )
            raise UnsupportedModel(f"{message}: GGUF files cannot express its rules. {option}.")
        notes.append(message)
    elif (text := _find_difference_around_tokens(tokenizer, converted)) is not None:
        notes.append(f"text beside control tokens, as in {text[:60]!r}, has other ids than in {path}: spaces there")
    return ConvertedTokenizer(fields, tuple(notes))


def _find_difference_around_tokens(expected: Tokenizer, actual: Tokenizer) -> str | None:
    names = expected.special.names
    return tokenizer_comparison.find_difference_around_tokens(names, expected.encode, actual.encode)


def _make_named_id_fields(vocabulary: ConvertedVocabulary, tokenizer: Tokenizer, folder: TokenizerFolder) -> Fields:
    """Return the ids of named tokens: those of the tokenizer's files, then those of config.json."""
    ids: dict[str, int | None] = {name: vocabulary.ids.get(text) for name, text in tokenizer.special.names.items()}
    ids["bos_token"] = tokenizer.bos_id
    ids["eos_token"] = tokenizer.eos_id
    fields: Fields = {}
    for name, gguf_name in GGUF_NAMES.items():
        token = ids.get(name)
        if token is None and (config_ids := folder.read_ids(f"{name}_id")):
            token = config_ids[0]
        if token is None and name == "unk_token":
            token = vocabulary.unknown
        if token is not None and token < len(vocabulary.tokens):
            fields[f"tokenizer.ggml.{gguf_name}_token_id"] = ("u32", token)
    if vocabulary.model == "bert":  # llama.cpp puts BOS and EOS around texts
        for source, target in (("cls", "bos"), ("seperator", "eos")):
            if (field := fields.get(f"tokenizer.ggml.{source}_token_id")) is not None:
                fields.setdefault(f"tokenizer.ggml.{target}_token_id", field)
    return fields


def _make_bos_eos_fields(vocabulary: ConvertedVocabulary, tokenizer: Tokenizer, label: str) -> Fields:
    """Return whether BOS and EOS are put around a text. Raises UnsupportedModel for other tokens."""
    special = tokenizer.special
    if vocabulary.model == "bert":
        return {}
    for place, ids, expected in (("before", special.prefix, special.bos_id), ("after", special.suffix, special.eos_id)):
        if ids not in ((), (expected,)):
            pieces = [tokenizer.id_to_piece(token) for token in ids][:4]
            raise UnsupportedModel(
                f"{label}: its tokenizer puts {pieces} {place} every text; a GGUF file can only ask for BOS and EOS"
            )
    return {
        "tokenizer.ggml.add_bos_token": ("bool", bool(special.prefix)),
        "tokenizer.ggml.add_eos_token": ("bool", bool(special.suffix)),
    }


def _add_stop_ids(vocabulary: ConvertedVocabulary, tokenizer: Tokenizer, fields: Fields) -> list[str]:
    """Add the stop ids that readers do not know by their text. GGUF has two keys for them; return a note on more."""
    ids = {vocabulary.ids.get(text) for text in END_OF_TURN_TEXTS}
    known = {token for token in ids if token is not None and vocabulary.types[token] == CONTROL}
    unknown = sorted(tokenizer.stop_ids - known - {tokenizer.eos_id})
    for name, token in zip(("eot", "eom"), unknown, strict=False):
        fields[f"tokenizer.ggml.{name}_token_id"] = ("u32", token)
    if len(unknown) <= 2:
        return []
    texts = [tokenizer.id_to_piece(token) for token in unknown[2:6]]
    return [f"more tokens end a turn than a GGUF file has keys for; left out: {texts}"]


def _convert_templates(templates: Mapping[str, str], notes: list[str]) -> Fields:
    """Return the chat templates, under names of ASCII letters and digits as llama.cpp's converter makes them."""
    fields: Fields = {}
    names: list[str] = []
    for name, source in templates.items():
        if name == "default":
            fields["tokenizer.chat_template"] = ("str", source)
            continue
        key = "".join(character if character in ascii_letters + digits else "_" for character in name)
        if not key or key in names:
            notes.append(f"the chat template {name[:60]!r} is left out: its name in a GGUF file is not unique")
            continue
        names.append(key)
        fields[f"tokenizer.chat_template.{key}"] = ("str", source)
    if names:
        fields["tokenizer.chat_templates"] = ("[str]", names)
    return fields
