"""Converts the tokenizer of a GGUF file to the files of a Hugging Face folder: tokenizer.json and those beside it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from sporelm.text.tokenizers.conversion import tokenizer_comparison
from sporelm.text.tokenizers.conversion.tokenizer_json_writer import build_tokenizer_json
from sporelm.text.tokenizers.gguf_special_tokens import SpecialTokenRoles, classify_special_tokens
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary
from sporelm.text.tokenizers.hf_plamo import TOKENIZER_JSONL, format_tokenizer_jsonl
from sporelm.text.tokenizers.hf_tokenizer_json import build_library_tokenizer
from sporelm.text.tokenizers.load_tokenizer import load_gguf_tokenizer
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizers_library import catch_library_errors

MAX_TEMPLATES = 64


class TokenizerFiles(NamedTuple):
    """The converted files.

    files      name -> contents
    ids        the ids of named tokens
    notes      what the files cannot express, one line each
    """

    files: dict[str, str]
    ids: dict[str, int]
    stop_ids: frozenset[int]
    notes: tuple[str, ...]


def convert_tokenizer_to_hf(metadata: Mapping[str, Any], label: str) -> TokenizerFiles:
    """Return the files of the tokenizer in a GGUF file's metadata.

    They are read back and compared with the GGUF file's tokenizer on some texts; a difference is a note. Raises
    ModelFileError for a damaged vocabulary, UnsupportedModel for an unsupported kind.
    """
    tokenizer = load_gguf_tokenizer(metadata, label)
    vocabulary = GgufVocabulary(metadata, label)
    roles = classify_special_tokens(vocabulary)
    templates = _read_all_templates(vocabulary, tokenizer)
    config = _make_config(vocabulary, roles, tokenizer, templates)
    named_ids = {name: vocabulary.ids[text] for name, text in tokenizer.special.names.items()}
    if metadata.get("tokenizer.ggml.model") == "plamo2":
        files = {
            TOKENIZER_JSONL: format_tokenizer_jsonl(vocabulary),
            "tokenizer_config.json": _to_json(config | {"tokenizer_class": "PlamoTokenizer"}),
        }
        return TokenizerFiles(files, named_ids, tokenizer.special.stop_ids, ())
    spec = build_tokenizer_json(vocabulary, roles, tokenizer.special, tokenizer.decoder.leading_spaces)
    files = {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, indent=1),
        "tokenizer_config.json": _to_json(config),
        "special_tokens_map.json": _to_json(dict(tokenizer.special.names)),
    }
    notes = _find_differences(spec, tokenizer, label)
    return TokenizerFiles(files, named_ids, tokenizer.special.stop_ids, tuple(notes))


def _find_differences(spec: dict[str, Any], expected: Tokenizer, label: str) -> list[str]:
    with catch_library_errors(f"{label}: the converted tokenizer.json"):
        library_tokenizer = build_library_tokenizer(spec, label)

        def encode(text: str) -> list[int]:
            ids: list[int] = library_tokenizer.encode(text).ids
            return ids

        text = tokenizer_comparison.find_difference(expected.encode, encode)
        if text is None:
            names = expected.special.names
            text = tokenizer_comparison.find_difference_around_tokens(names, expected.encode, encode)
    if text is None:
        return []
    return [
        f"the tokenizer.json encodes {text[:60]!r} to other ids than the GGUF file: it cannot express one of its rules"
    ]


def _make_config(
    vocabulary: GgufVocabulary, roles: SpecialTokenRoles, tokenizer: Tokenizer, templates: Mapping[str, str]
) -> dict[str, Any]:
    """Return tokenizer_config.json: the named tokens, BOS and EOS around a text, the chat templates."""
    special = tokenizer.special
    config: dict[str, Any] = {
        "added_tokens_decoder": {
            str(token): {
                "content": entry.text,
                "lstrip": entry.lstrip,
                "normalized": False,
                "rstrip": entry.rstrip,
                "single_word": False,
                "special": token in roles.control,
            }
            for token, entry in sorted(roles.added_tokens.items())
            if entry.text
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": 10**30,  # no limit here: config.json has the context length
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special.names,
    }
    is_bert = vocabulary.metadata.get("tokenizer.ggml.model") == "bert"
    if len(special.prefix) < 2 and len(special.suffix) < 2 and not is_bert:
        config["add_bos_token"] = bool(special.prefix)
        config["add_eos_token"] = bool(special.suffix)
    if list(templates) == ["default"]:
        config["chat_template"] = templates["default"]
    elif templates:
        config["chat_template"] = [{"name": name, "template": source} for name, source in templates.items()]
    return config


def _read_all_templates(vocabulary: GgufVocabulary, tokenizer: Tokenizer) -> dict[str, str]:
    """Return all chat templates: a file may list more names than the tokenizer reads."""
    templates = dict(tokenizer.chat_templates)
    names = vocabulary.metadata.get("tokenizer.chat_templates")
    decode_all = getattr(names, "decode_all", None)
    if decode_all is not None and len(cast(Any, names)) <= MAX_TEMPLATES:
        names = decode_all()
    for name in names if isinstance(names, list) else []:
        source = vocabulary.read(f"tokenizer.chat_template.{name}", str)
        if source and isinstance(name, str):
            templates.setdefault(name, source)
    return templates


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"
