"""The tokenizer of a Hugging Face folder as metadata of a GGUF file.

Keys: the GGUF specification, section "Tokenizer". What is written under them, and in which words: llama.cpp's converter
(conversion/base.py, gguf-py/gguf/vocab.py), so that llama.cpp reads of it what it would read of its own files.
"""

from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters, digits
from typing import Any, NamedTuple, cast

from sporelm.errors import RequestError, UnsupportedModel
from sporelm.text.exchange import comparison
from sporelm.text.exchange.gguf_kinds import Fields, Vocabulary, read_vocabulary
from sporelm.text.hf_folder import Folder
from sporelm.text.load import load_tokenizer
from sporelm.text.special_tokens import TURN_ENDS
from sporelm.text.token_bytes import missing_bytes
from sporelm.text.token_types import BYTE, CONTROL
from sporelm.text.tokenizer import Tokenizer

# Names of special tokens, and what GGUF calls them (the third is spelled so).
NAMED = {
    "bos_token": "bos",
    "eos_token": "eos",
    "sep_token": "seperator",
    "unk_token": "unknown",
    "pad_token": "padding",
    "cls_token": "cls",
    "mask_token": "mask",
}


class Converted(NamedTuple):
    """key -> (kind, value), and what cannot be said in a GGUF file, a line each."""

    fields: Fields
    notes: tuple[str, ...]


class MetadataSource(NamedTuple):
    """Metadata where a GGUF file is expected."""

    metadata: Mapping[str, Any]
    path: str


def fields_of_folder(path: Path, vocab: int | None = None, pre: str | None = None) -> Converted:
    """The fields of a folder's tokenizer.

    vocab    rows of the model's embedding: as many tokens are written; None: as many as there are
    pre      a value for tokenizer.ggml.pre that the user vouches for

    The fields are read back and compared with the folder's tokenizer on some texts. Raises ModelNotFound without a
    tokenizer, ModelFileError for a damaged one, UnsupportedModel for one that GGUF files cannot describe.
    """
    wanted, folder = load_tokenizer(path), Folder(path)
    found = read_vocabulary(path, folder, vocab, pre)
    if pre not in (None, "default") and found.kind != "gpt2":
        raise RequestError(
            f"--pre {str(pre)[:60]}: {path} has a tokenizer of kind {found.kind!r}, for which it is 'default'"
        )
    fields = found.fields | _special(found, wanted, folder) | _framing(found, wanted, str(path))
    notes = list(found.notes)
    lacking = missing_bytes(found.ids.__contains__) if found.kind == "gpt2" and found.unknown is not None else b""
    if lacking:
        notes.append(f"{len(lacking)} bytes have no token, and readers of GGUF files put no unknown token for them")
    if found.kind == "llama" and BYTE not in found.types:
        notes.append("no tokens stand for bytes: llama.cpp gives up on characters that are no token")
    fields |= _templates(wanted.chat_templates, notes)
    notes += _more_ends(found, wanted, fields)
    label = f"{path}, as GGUF"
    made = load_tokenizer(cast(Any, MetadataSource({key: value for key, (_, value) in fields.items()}, label)))
    text = comparison.first_difference(wanted.encode, made.encode)
    if text is not None:
        message = f"{path}: its tokenizer makes other ids of {text[:60]!r} than the GGUF file would"
        if pre is None and found.kind != "bert":  # whose words GGUF files cut in llama.cpp's way
            which = "--pre NAME names another way to cut text" if found.kind == "gpt2" else "it needs --pre default"
            raise UnsupportedModel(f"{message}: they have no words for its rules; {which}, which takes it as it is")
        notes.append(message)
    elif (text := _around(wanted, made)) is not None:
        notes.append(f"text beside control tokens, as in {text[:60]!r}, has other ids than in {path}: spaces there")
    return Converted(fields, tuple(notes))


def _around(wanted: Tokenizer, made: Tokenizer) -> str | None:
    return comparison.first_difference_around(wanted.special.names, wanted.encode, made.encode)


def _special(found: Vocabulary, wanted: Tokenizer, folder: Folder) -> Fields:
    """The ids of tokens with a name: those of the tokenizer's files, then those of config.json."""
    ids: dict[str, int | None] = {name: found.ids.get(text) for name, text in wanted.special.names.items()}
    ids["bos_token"], ids["eos_token"] = wanted.bos_id, wanted.eos_id
    fields: Fields = {}
    for name, word in NAMED.items():
        token = ids.get(name)
        if token is None and (given := folder.ids(f"{name}_id")):
            token = given[0]
        if token is None and name == "unk_token":
            token = found.unknown
        if token is not None and token < len(found.tokens):
            fields[f"tokenizer.ggml.{word}_token_id"] = ("u32", token)
    if found.kind == "bert":  # what llama.cpp puts around texts
        for ours, name in (("cls", "bos"), ("seperator", "eos")):
            if (field := fields.get(f"tokenizer.ggml.{ours}_token_id")) is not None:
                fields.setdefault(f"tokenizer.ggml.{name}_token_id", field)
    return fields


def _framing(found: Vocabulary, wanted: Tokenizer, label: str) -> Fields:
    """Whether BOS and EOS are put around a text. Raises UnsupportedModel for other tokens."""
    special = wanted.special
    if found.kind == "bert":
        return {}
    for what, ids, named in (("before", special.prefix, special.bos_id), ("after", special.suffix, special.eos_id)):
        if ids not in ((), (named,)):
            shown = [wanted.id_to_piece(token) for token in ids][:4]
            raise UnsupportedModel(
                f"{label}: its tokenizer puts {shown} {what} every text; a GGUF file can ask for BOS and EOS alone"
            )
    return {
        "tokenizer.ggml.add_bos_token": ("bool", bool(special.prefix)),
        "tokenizer.ggml.add_eos_token": ("bool", bool(special.suffix)),
    }


def _more_ends(found: Vocabulary, wanted: Tokenizer, fields: Fields) -> list[str]:
    """Adds ends of turns that readers do not know by their text. They have two names for them; a note on the others."""
    known = {found.ids.get(text) for text in TURN_ENDS}
    known = {token for token in known if token is not None and found.types[token] == CONTROL}
    unknown = sorted(wanted.stop_ids - known - {wanted.eos_id})
    for word, token in zip(("eot", "eom"), unknown, strict=False):
        fields[f"tokenizer.ggml.{word}_token_id"] = ("u32", token)
    if len(unknown) <= 2:
        return []
    texts = [wanted.id_to_piece(token) for token in unknown[2:6]]
    return [f"more tokens end a turn than a GGUF file has names for; left out: {texts}"]


def _templates(templates: Mapping[str, str], notes: list[str]) -> Fields:
    """The chat templates, under names of ASCII letters and digits as llama.cpp's converter makes them."""
    fields: Fields = {}
    names: list[str] = []
    for name, source in templates.items():
        if name == "default":
            fields["tokenizer.chat_template"] = ("str", source)
            continue
        plain = "".join(letter if letter in ascii_letters + digits else "_" for letter in name)
        if not plain or plain in names:
            notes.append(f"the chat template {name[:60]!r} is left out: it has no name of its own in a GGUF file")
            continue
        names.append(plain)
        fields[f"tokenizer.chat_template.{plain}"] = ("str", source)
    if names:
        fields["tokenizer.chat_templates"] = ("[str]", names)
    return fields
