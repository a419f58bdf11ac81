"""SentencePiece BPE vocabularies ("llama"), which merge by score, from the metadata of GGUF files.

Rules: llama.cpp's llama-vocab.cpp (llm_tokenizer_spm). One rule is SentencePiece's instead: plain text never becomes a
control, unknown or byte token, so that it cannot forge one.
"""

from collections.abc import Mapping
from typing import Any

from sporelm.text.tokenizers.byte_level import SPACE, make_byte_fallback
from sporelm.text.tokenizers.gguf_special_tokens import (
    build_special_tokens,
    classify_special_tokens,
    find_prefix_and_suffix,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary, make_gguf_decoder
from sporelm.text.tokenizers.sentencepiece_bpe import SentencePieceBpe
from sporelm.text.tokenizers.token_types import BYTE
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline

_DEFAULT_IDS = {"unk_token": 0, "bos_token": 1, "eos_token": 2}


def load_gguf_sentencepiece(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of a "llama" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = GgufVocabulary(metadata, label)
    vocabulary.check_token_lengths()
    roles = classify_special_tokens(vocabulary)
    named_ids = read_named_ids(vocabulary, _DEFAULT_IDS)
    types = vocabulary.types
    ids = {text: i for i, text in enumerate(vocabulary.tokens) if text and i not in roles.control and types[i] != BYTE}
    scores = vocabulary.read_scores()
    unknown = named_ids.get("unk_token")
    model = SentencePieceBpe(
        ids, {text: scores[i] for text, i in ids.items()}, make_byte_fallback(vocabulary.ids, unknown), unknown
    )
    adds_space = vocabulary.read_flag("add_space_prefix", True)
    normalize = _add_prefix_space if adds_space else _replace_spaces
    prefix, suffix = find_prefix_and_suffix(vocabulary, named_ids, adds_bos=True, adds_eos=False)
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model, normalize),
        TokenizerPipeline(roles.plain_splitter, model, normalize),
        decoder=make_gguf_decoder(vocabulary, roles.special, metaspace=True, leading_spaces=int(adds_space)),
        special=build_special_tokens(vocabulary, roles, _DEFAULT_IDS, prefix=prefix, suffix=suffix),
        chat_templates=read_chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )


def _add_prefix_space(text: str, add_prefix: bool) -> str:
    return (" " + text if add_prefix else text).replace(" ", SPACE)


def _replace_spaces(text: str, add_prefix: bool) -> str:
    return text.replace(" ", SPACE)
