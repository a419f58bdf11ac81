"""WordPiece vocabularies ("bert") from the metadata of GGUF files, by llama.cpp's rules (llama-vocab.cpp)."""

from collections.abc import Mapping
from typing import Any

from sporelm.text.tokenizers.gguf_special_tokens import (
    WITHOUT_TOKEN_TYPES,
    build_special_tokens,
    classify_special_tokens,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary, make_gguf_decoder
from sporelm.text.tokenizers.token_decoder import CleanupDecoder
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline
from sporelm.text.tokenizers.wordpiece import WordPiece

_DEFAULT_IDS = {"pad_token": 0, "unk_token": 100, "bos_token": 101, "sep_token": 102, "mask_token": 103}


def load_gguf_wordpiece(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of a "bert" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = GgufVocabulary(metadata, label)
    vocabulary.check_token_lengths()
    defaults = dict(_DEFAULT_IDS)
    if (cls := vocabulary.read_token_id("tokenizer.ggml.cls_token_id")) is not None:
        defaults["bos_token"] = cls
    named_ids = read_named_ids(vocabulary, defaults)
    for name in ("unk_token", "bos_token", "sep_token"):
        if name not in named_ids:
            raise vocabulary.make_error(f"it has no {name}: {len(vocabulary.tokens)} tokens, and none is named")
    lowercase = vocabulary.read_flag("normalizer.lowercase", True)
    roles = classify_special_tokens(vocabulary)
    model = WordPiece(
        {text: token for text, token in vocabulary.ids.items() if text and token not in roles.control},
        named_ids["unk_token"],
        lowercase=lowercase,
        strip_accents=vocabulary.read_flag("normalizer.strip_accents", lowercase),
    )
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model),
        TokenizerPipeline(roles.plain_splitter, model),
        decoder=CleanupDecoder(make_gguf_decoder(vocabulary, roles.special, metaspace=True, leading_spaces=1)),
        special=build_special_tokens(
            vocabulary,
            roles,
            defaults,
            prefix=(named_ids["bos_token"],),
            suffix=(named_ids["sep_token"],),
            has_pair_token_types=metadata.get("general.architecture") not in WITHOUT_TOKEN_TYPES,
        ),
        chat_templates=read_chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )
