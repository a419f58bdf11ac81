"""Unigram vocabularies ("t5") from the metadata of GGUF files; the rules are llama.cpp's (llm_tokenizer_ugm)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sporelm.text.charsmap import Replacements, read_charsmap
from sporelm.text.gguf_roles import chat_templates, flag, framing, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_spm import check_lengths, scores_of
from sporelm.text.gguf_vocabulary import Vocabulary, decoding_of_tokens
from sporelm.text.sentencepiece_engine import SentencePieceEngine
from sporelm.text.token_bytes import SPACE
from sporelm.text.token_types import NORMAL, UNUSED, USER_DEFINED
from sporelm.text.tokenizer import Tokenizer
from sporelm.text.unigram import Unigram, check_total_length

_DEFAULTS = {"pad_token": 0, "eos_token": 1, "unk_token": 2}


def unigram_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer of a "t5" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = Vocabulary(metadata, label)
    check_lengths(vocabulary)
    check_total_length(vocabulary.tokens, label)
    named = named_ids(vocabulary, _DEFAULTS)
    if "unk_token" not in named:
        raise vocabulary.fail(f"it has no unknown token: {len(vocabulary.tokens)} tokens, and none is named")
    roles = roles_of(vocabulary)
    adds_space = flag(vocabulary, "add_space_prefix", False)
    merges_spaces = flag(vocabulary, "remove_extra_whitespaces", False)
    replace = Replacements(read_charsmap(charsmap_of(vocabulary), label))
    normalize = _normalizer(replace, adds_space=adds_space, merges_spaces=merges_spaces)
    model = _model_of(vocabulary, named["unk_token"], roles.control)
    prefix, suffix = framing(vocabulary, named, bos=False, eos=True)
    plain = roles.plain
    return Tokenizer(
        SentencePieceEngine(roles.parsing, normalize, model),
        lambda: SentencePieceEngine(plain, normalize, model),
        decoding=decoding_of_tokens(
            vocabulary, roles.special, pieces=True, leading_spaces=int(adds_space or merges_spaces)
        ),
        special=special_tokens_of(vocabulary, roles, _DEFAULTS, prefix=prefix, suffix=suffix),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )


def _model_of(vocabulary: Vocabulary, unknown: int, control: frozenset[int]) -> Unigram:
    types, scores = vocabulary.types, scores_of(vocabulary)
    usable = {
        text: i
        for i, text in enumerate(vocabulary.tokens)
        if text and i not in control and types[i] in (NORMAL, USER_DEFINED, UNUSED)
    }
    lowest = min((scores[i] for i, kind in enumerate(types) if kind == NORMAL), default=0.0)
    own = {text: 0.0 if types[i] == USER_DEFINED else scores[i] for text, i in usable.items()}
    return Unigram(usable, own, unknown, lowest=lowest, narrow=False)


def charsmap_of(vocabulary: Vocabulary) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    value = vocabulary.metadata.get(key)
    if value is None:
        return b""
    array = np.asarray(value) if isinstance(value, (list, np.ndarray)) else np.zeros(0)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.dtype.itemsize > 1 and isinstance(value, np.ndarray)):
        raise vocabulary.fail(f"{key} is not an array of bytes")
    return array.astype(np.uint8).tobytes()


def _normalizer(replace: Callable[[str], str], *, adds_space: bool, merges_spaces: bool) -> Callable[[str, bool], str]:
    """Every fragment is treated alike. Where spaces are merged, every word gets one in front, asked for or not."""

    def normalize(text: str, first: bool) -> str:
        text = replace(text)
        if merges_spaces:
            return "".join([SPACE + word for word in text.split(" ") if word])
        bare = text.lstrip(" ")
        if adds_space and bare:
            text = " " * (len(text) - len(bare) + 1) + bare
        return text.replace(" ", SPACE)

    return normalize
