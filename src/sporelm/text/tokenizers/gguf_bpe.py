"""BPE tokenizers from the metadata of GGUF files: byte-level ones ("gpt2"), and those of characters ("gemma4").

Rules: llama.cpp's llama-vocab.cpp (llm_tokenizer_bpe).
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.bpe import BpeModel
from sporelm.text.tokenizers.byte_level import NEVER_IN_UTF8, SPACE, find_missing_bytes
from sporelm.text.tokenizers.gguf_special_tokens import (
    build_special_tokens,
    classify_special_tokens,
    find_prefix_and_suffix,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary, make_gguf_decoder
from sporelm.text.tokenizers.pre_tokenizers import PreTokenizer, find_pre_tokenizer, get_splitter
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline

log = logging.getLogger(__name__)

# Pre-tokens of a vocabulary in which no token continues after a space.
_WORDS = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"


def load_gguf_bpe(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the BPE tokenizer of a GGUF file's metadata.

    Raises ModelFileError for a damaged vocabulary, UnsupportedModel for another kind or an unknown pre-tokenizer.
    """
    pre_tokenizer = _read_pre_tokenizer(metadata, label)
    vocabulary = GgufVocabulary(metadata, label)
    roles = classify_special_tokens(vocabulary)
    model = _build_model(vocabulary, pre_tokenizer, roles.control)
    named_ids = read_named_ids(vocabulary, {})
    prefix, suffix = find_prefix_and_suffix(vocabulary, named_ids, adds_bos=pre_tokenizer.adds_bos, adds_eos=False)
    if pre_tokenizer.always_bos and "bos_token" in named_ids:
        prefix = (named_ids["bos_token"],)
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model),
        TokenizerPipeline(roles.plain_splitter, model),
        decoder=make_gguf_decoder(vocabulary, roles.special, metaspace=pre_tokenizer.metaspace),
        special=build_special_tokens(vocabulary, roles, {}, prefix=prefix, suffix=suffix),
        chat_templates=read_chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        missing_bytes=b"" if pre_tokenizer.metaspace else find_missing_bytes(vocabulary.ids.__contains__),
        skips_control_characters=True,
        label=label,
    )


def _read_pre_tokenizer(metadata: Mapping[str, Any], label: str) -> PreTokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelFileError(f"{label}: no vocabulary (tokenizer.ggml.model is missing). Use a GGUF file that has one.")
    if model == "gemma4":
        return find_pre_tokenizer("gemma4", label)
    if model != "gpt2":
        raise UnsupportedModel(
            f"{label}: tokenizer model is not supported from GGUF (got {str(model)[:60]!r}; allowed 'gpt2', 'gemma4' "
            "(BPE), 'llama', 't5' (SentencePiece), 'bert' (WordPiece), 'plamo2', 'rwkv'). Use a folder with a "
            "tokenizer.json."
        )
    name = metadata.get("tokenizer.ggml.pre", "")
    if not isinstance(name, str):
        raise ModelFileError(f"{label}: tokenizer.ggml.pre is a {type(name).__name__}, not a str; the file is damaged")
    if not name:
        _warn_once(label)
        name = "default"
    return find_pre_tokenizer(name, label)


@cache
def _warn_once(label: str) -> None:
    log.warning(
        "%s: the file names no pre-tokenizer (tokenizer.ggml.pre): 'default' is used, as in llama.cpp, and answers may "
        "be worse; set the entry to the name of the model's own pre-tokenizer",
        label,
    )


def _build_model(vocabulary: GgufVocabulary, pre_tokenizer: PreTokenizer, control: frozenset[int]) -> BpeModel:
    from tokenizers.models import BPE

    # Plain text never becomes a control token, so that it cannot forge one.
    control_texts = {text for text in map(vocabulary.tokens.__getitem__, control) if len(text) > 1}
    merges = vocabulary.read_merges()
    if not control_texts.isdisjoint(map("".join, merges)):
        merges = [pair for pair in merges if control_texts.isdisjoint(("".join(pair), *pair))]
    rules = pre_tokenizer.rules
    metaspace = pre_tokenizer.metaspace
    # Split at spaces too if no merge crosses one: words repeat, lines seldom do.
    if metaspace and not re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(map("".join, merges))):
        rules = (*rules, _WORDS)
    try:
        # BpeModel has a cache of its own; it also handles ignore_merges itself, by `unmerged`.
        model = BPE(vocab=vocabulary.ids, merges=merges, cache_capacity=0, byte_fallback=metaspace)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is a BaseException
        raise vocabulary.make_error(f"the vocabulary cannot be built: {summarize_error(error)}") from None
    unmerged = vocabulary.ids if pre_tokenizer.ignore_merges else {}
    if pre_tokenizer.keeps_newline_runs:
        unmerged = {
            text: token for text, token in vocabulary.ids.items() if text.startswith("\n") and not text.strip("\n")
        }
    unmerged = {text: token for text, token in unmerged.items() if text not in control_texts} if unmerged else {}
    characters = _find_characters(vocabulary) if metaspace else None
    return BpeModel(get_splitter(rules), model, unmerged, metaspace=metaspace, characters=characters)


def _find_characters(vocabulary: GgufVocabulary) -> frozenset[str] | None:
    """Return the characters that a metaspace vocabulary can represent; None if byte tokens represent all."""
    if all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256) if byte not in NEVER_IN_UTF8):
        return None
    return frozenset(text for text in vocabulary.tokens if len(text) == 1)
