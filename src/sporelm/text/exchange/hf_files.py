"""The tokenizer of a GGUF file as the files of a Hugging Face folder: tokenizer.json, tokenizer_config.json, ..."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from sporelm.text.exchange import comparison
from sporelm.text.exchange.gguf_fields import MetadataSource
from sporelm.text.exchange.hf_kinds import spec_of
from sporelm.text.gguf_roles import Roles, roles_of
from sporelm.text.gguf_vocabulary import Vocabulary
from sporelm.text.hf_folder import library_of
from sporelm.text.library import guarded
from sporelm.text.load import load_tokenizer
from sporelm.text.plamo_folder import LISTED, listed
from sporelm.text.tokenizer import Tokenizer

MOST_TEMPLATES = 64


class TokenizerFiles(NamedTuple):
    """Name -> contents of the files; the ids of special tokens by name; and what they cannot say, a line each."""

    files: dict[str, str]
    ids: dict[str, int]
    stop_ids: frozenset[int]
    notes: tuple[str, ...]


def files_of_metadata(metadata: Mapping[str, Any], label: str) -> TokenizerFiles:
    """The files of the tokenizer in a GGUF file's metadata.

    They are read back, and compared with the GGUF file's on some texts: what differs is a note. Raises ModelFileError
    for a damaged vocabulary, UnsupportedModel for a kind that we lack.
    """
    wanted = load_tokenizer(cast(Any, MetadataSource(metadata, label)))
    vocabulary = Vocabulary(metadata, label)
    roles = roles_of(vocabulary)
    templates = _templates(vocabulary, wanted)
    if metadata.get("tokenizer.ggml.model") == "plamo2":
        config = _config(vocabulary, roles, wanted, templates) | {"tokenizer_class": "PlamoTokenizer"}
        found = {LISTED: listed(vocabulary), "tokenizer_config.json": _json(config)}
        return TokenizerFiles(found, _named(vocabulary, wanted), wanted.special.stop_ids, ())
    spec = spec_of(vocabulary, roles, wanted.special, wanted.decoding.leading_spaces)
    files = {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, indent=1),
        "tokenizer_config.json": _json(_config(vocabulary, roles, wanted, templates)),
        "special_tokens_map.json": _json(dict(wanted.special.names)),
    }
    return TokenizerFiles(
        files, _named(vocabulary, wanted), wanted.special.stop_ids, tuple(_differences(spec, wanted, label))
    )


def _named(vocabulary: Vocabulary, wanted: Tokenizer) -> dict[str, int]:
    return {name: vocabulary.ids[text] for name, text in wanted.special.names.items()}


def _differences(spec: dict[str, Any], wanted: Tokenizer, label: str) -> list[str]:
    with guarded(f"{label}: the tokenizer.json made of it"):
        library = library_of(spec, label)

        def encode(text: str) -> list[int]:
            ids: list[int] = library.encode(text).ids
            return ids

        text = comparison.first_difference(wanted.encode, encode)
        if text is None:
            text = comparison.first_difference_around(wanted.special.names, wanted.encode, encode)
    if text is None:
        return []
    return [f"the tokenizer.json makes other ids of {text[:60]!r} than the GGUF file: it has no words for that rule"]


def _config(vocabulary: Vocabulary, roles: Roles, wanted: Tokenizer, templates: Mapping[str, str]) -> dict[str, Any]:
    """tokenizer_config.json: the named tokens, what is put around a text, the chat templates."""
    special = wanted.special
    found: dict[str, Any] = {
        "added_tokens_decoder": {
            str(token): {
                "content": entry.text,
                "lstrip": entry.takes_left,
                "normalized": False,
                "rstrip": entry.takes_right,
                "single_word": False,
                "special": token in roles.control,
            }
            for token, entry in sorted(roles.texts.items())
            if entry.text
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**30,  # none: the configuration has it
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special.names,
    }
    if (
        len(special.prefix) < 2
        and len(special.suffix) < 2
        and vocabulary.metadata.get("tokenizer.ggml.model") != "bert"
    ):
        found["add_bos_token"], found["add_eos_token"] = bool(special.prefix), bool(special.suffix)
    if list(templates) == ["default"]:
        found["chat_template"] = templates["default"]
    elif templates:
        found["chat_template"] = [{"name": name, "template": source} for name, source in templates.items()]
    return found


def _templates(vocabulary: Vocabulary, wanted: Tokenizer) -> dict[str, str]:
    """All chat templates: the tokenizer keeps those it knows, a file may name more."""
    found = dict(wanted.chat_templates)
    names = vocabulary.metadata.get("tokenizer.chat_templates")
    decode_all = getattr(names, "decode_all", None)
    if decode_all is not None and len(cast(Any, names)) <= MOST_TEMPLATES:
        names = decode_all()
    for name in names if isinstance(names, list) else []:
        source = vocabulary.value(f"tokenizer.chat_template.{name}", str)
        if source and isinstance(name, str):
            found.setdefault(name, source)
    return found


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
