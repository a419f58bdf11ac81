"""WordPiece vocabularies ("bert") from the metadata of GGUF files; the rules are llama.cpp's (llama-vocab.cpp)."""

from collections.abc import Mapping
from typing import Any

from sporelm.text.gguf_roles import UNTYPED, chat_templates, flag, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_spm import check_lengths
from sporelm.text.gguf_vocabulary import Vocabulary, decoding_of_tokens
from sporelm.text.sentencepiece_engine import SentencePieceEngine
from sporelm.text.token_bytes import CleanedDecoding
from sporelm.text.tokenizer import Tokenizer
from sporelm.text.wordpiece import WordPieces

_DEFAULTS = {"pad_token": 0, "unk_token": 100, "bos_token": 101, "sep_token": 102, "mask_token": 103}


def wordpiece_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer of a "bert" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = Vocabulary(metadata, label)
    check_lengths(vocabulary)
    defaults = dict(_DEFAULTS)
    if (cls := vocabulary.token_id("tokenizer.ggml.cls_token_id")) is not None:
        defaults["bos_token"] = cls
    named = named_ids(vocabulary, defaults)
    for name in ("unk_token", "bos_token", "sep_token"):
        if name not in named:
            raise vocabulary.fail(f"it has no {name}: {len(vocabulary.tokens)} tokens, and none is named")
    lowercase = flag(vocabulary, "normalizer.lowercase", True)
    roles = roles_of(vocabulary)
    model = WordPieces(
        {text: token for text, token in vocabulary.ids.items() if text and token not in roles.control},
        named["unk_token"],
        lowercase=lowercase,
        strip_accents=flag(vocabulary, "normalizer.strip_accents", lowercase),
    )
    plain = roles.plain
    return Tokenizer(
        SentencePieceEngine(roles.parsing, _as_it_is, model),
        lambda: SentencePieceEngine(plain, _as_it_is, model),
        decoding=CleanedDecoding(decoding_of_tokens(vocabulary, roles.special, pieces=True, leading_spaces=1)),
        special=special_tokens_of(
            vocabulary,
            roles,
            defaults,
            prefix=(named["bos_token"],),
            suffix=(named["sep_token"],),
            typed=metadata.get("general.architecture") not in UNTYPED,
        ),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )


def _as_it_is(text: str, first: bool) -> str:
    return text
