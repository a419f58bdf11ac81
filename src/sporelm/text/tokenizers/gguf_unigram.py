"""Unigram vocabularies ("t5") from the metadata of GGUF files, by llama.cpp's rules (llm_tokenizer_ugm)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sporelm.text.tokenizers.byte_level import SPACE
from sporelm.text.tokenizers.gguf_special_tokens import (
    build_special_tokens,
    classify_special_tokens,
    find_prefix_and_suffix,
    read_chat_templates,
    read_named_ids,
)
from sporelm.text.tokenizers.gguf_vocabulary import GgufVocabulary, make_gguf_decoder
from sporelm.text.tokenizers.precompiled_charsmap import CharsMap, parse_charsmap
from sporelm.text.tokenizers.token_types import NORMAL, UNUSED, USER_DEFINED
from sporelm.text.tokenizers.tokenizer import Tokenizer
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline
from sporelm.text.tokenizers.unigram import Unigram, check_total_length

_DEFAULT_IDS = {"pad_token": 0, "eos_token": 1, "unk_token": 2}


def load_gguf_unigram(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """Return the tokenizer of a "t5" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = GgufVocabulary(metadata, label)
    vocabulary.check_token_lengths()
    check_total_length(vocabulary.tokens, label)
    named_ids = read_named_ids(vocabulary, _DEFAULT_IDS)
    if "unk_token" not in named_ids:
        raise vocabulary.make_error(f"it has no unknown token: {len(vocabulary.tokens)} tokens, and none is named")
    roles = classify_special_tokens(vocabulary)
    adds_space = vocabulary.read_flag("add_space_prefix", False)
    merges_spaces = vocabulary.read_flag("remove_extra_whitespaces", False)
    replace = CharsMap(parse_charsmap(read_charsmap_bytes(vocabulary), label))
    normalize = _make_normalizer(replace, adds_space=adds_space, merges_spaces=merges_spaces)
    model = _build_model(vocabulary, named_ids["unk_token"], roles.control)
    prefix, suffix = find_prefix_and_suffix(vocabulary, named_ids, adds_bos=False, adds_eos=True)
    return Tokenizer(
        TokenizerPipeline(roles.splitter, model, normalize),
        TokenizerPipeline(roles.plain_splitter, model, normalize),
        decoder=make_gguf_decoder(
            vocabulary, roles.special, metaspace=True, leading_spaces=int(adds_space or merges_spaces)
        ),
        special=build_special_tokens(vocabulary, roles, _DEFAULT_IDS, prefix=prefix, suffix=suffix),
        chat_templates=read_chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )


def _build_model(vocabulary: GgufVocabulary, unknown: int, control: frozenset[int]) -> Unigram:
    types = vocabulary.types
    scores = vocabulary.read_scores()
    ids = {
        text: i
        for i, text in enumerate(vocabulary.tokens)
        if text and i not in control and types[i] in (NORMAL, USER_DEFINED, UNUSED)
    }
    min_score = min((scores[i] for i, kind in enumerate(types) if kind == NORMAL), default=0.0)
    score_of_text = {text: 0.0 if types[i] == USER_DEFINED else scores[i] for text, i in ids.items()}
    return Unigram(ids, score_of_text, unknown, min_score=min_score, float32=False)


def read_charsmap_bytes(vocabulary: GgufVocabulary) -> bytes:
    """Return the precompiled_charsmap of a vocabulary; empty if it is absent."""
    key = "tokenizer.ggml.precompiled_charsmap"
    value = vocabulary.metadata.get(key)
    if value is None:
        return b""
    array = np.asarray(value) if isinstance(value, (list, np.ndarray)) else np.zeros(0)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.dtype.itemsize > 1 and isinstance(value, np.ndarray)):
        raise vocabulary.make_error(f"{key} is not an array of bytes")
    return array.astype(np.uint8).tobytes()


def _make_normalizer(
    replace: Callable[[str], str], *, adds_space: bool, merges_spaces: bool
) -> Callable[[str, bool], str]:
    """Return the normalizer, which treats all fragments alike. Where spaces are merged, every word gets a space in
    front, whatever `adds_space` is."""

    def normalize(text: str, add_prefix: bool) -> str:
        text = replace(text)
        if merges_spaces:
            return "".join([SPACE + word for word in text.split(" ") if word])
        stripped = text.lstrip(" ")
        if adds_space and stripped:
            text = " " * (len(text) - len(stripped) + 1) + stripped
        return text.replace(" ", SPACE)

    return normalize
