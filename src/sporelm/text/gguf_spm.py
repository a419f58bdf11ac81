"""SentencePiece vocabularies from the metadata of GGUF files: BPE by scores ("llama").

Rules: llama.cpp's llama-vocab.cpp (llm_tokenizer_spm). One rule is SentencePiece's instead: letters
never become a control, unknown or byte token, so that plain text cannot forge one.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sporelm.text.gguf_roles import Roles, chat_templates, flag, framing, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_vocabulary import Vocabulary, decoding_of_tokens
from sporelm.text.scored_merges import ScoredMerges
from sporelm.text.sentencepiece_engine import SentencePieceEngine
from sporelm.text.token_bytes import SPACE
from sporelm.text.token_types import BYTE
from sporelm.text.tokenizer import Tokenizer

MAX_TOKEN_CHARACTERS = 1 << 14
_SPM_DEFAULTS = {"unk_token": 0, "bos_token": 1, "eos_token": 2}


def spm_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The tokenizer of a "llama" vocabulary. Raises ModelFileError for a damaged one."""
    vocabulary = Vocabulary(metadata, label)
    check_lengths(vocabulary)
    roles = roles_of(vocabulary)
    named = named_ids(vocabulary, _SPM_DEFAULTS)
    usable = _usable(vocabulary, roles)
    scores = scores_of(vocabulary)
    spelled = spelling(vocabulary.ids, named.get("unk_token"))
    model = ScoredMerges(usable, {text: scores[i] for text, i in usable.items()}, spelled, named.get("unk_token"))
    adds_space = flag(vocabulary, "add_space_prefix", True)
    normalize = _with_space if adds_space else _escaped
    prefix, suffix = framing(vocabulary, named, bos=True, eos=False)
    plain = roles.plain
    return Tokenizer(
        SentencePieceEngine(roles.parsing, normalize, model),
        lambda: SentencePieceEngine(plain, normalize, model),
        decoding=decoding_of_tokens(vocabulary, roles.special, pieces=True, leading_spaces=int(adds_space)),
        special=special_tokens_of(vocabulary, roles, _SPM_DEFAULTS, prefix=prefix, suffix=suffix),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        label=label,
    )


def check_lengths(vocabulary: Vocabulary) -> None:
    """Raise ModelFileError for a token of a length that no model has."""
    longest = max(range(len(vocabulary.tokens)), key=lambda token: len(vocabulary.tokens[token]))
    size = len(vocabulary.tokens[longest])
    if size > MAX_TOKEN_CHARACTERS:
        raise vocabulary.fail(f"token {longest} has {size} characters, more than {MAX_TOKEN_CHARACTERS}")


def spelling(ids: Mapping[str, int], unknown: int | None) -> Callable[[str], tuple[int, ...]]:
    """What spells a character that is no token: a token for each of its bytes; where one lacks, the unknown token."""
    table = [ids.get(f"<0x{byte:02X}>", ids.get(chr(byte)) if byte < 128 else None) for byte in range(256)]
    instead = () if unknown is None else (unknown,)

    def spelled(character: str) -> tuple[int, ...]:
        found = [table[byte] for byte in character.encode()]
        return instead if None in found else tuple(token for token in found if token is not None)

    return spelled


def _usable(vocabulary: Vocabulary, roles: Roles) -> dict[str, int]:
    """The tokens that letters may become."""
    types = vocabulary.types
    return {text: i for i, text in enumerate(vocabulary.tokens) if text and i not in roles.control and types[i] != BYTE}


def scores_of(vocabulary: Vocabulary) -> list[float]:
    """The score of every token. Raises ModelFileError where there are none, or not as many as tokens."""
    key = "tokenizer.ggml.scores"
    values = vocabulary.metadata.get(key)
    if values is None:
        raise vocabulary.fail(f"{key} is missing")
    scores = np.asarray(values) if isinstance(values, (list, np.ndarray)) else None
    if scores is None or scores.ndim != 1 or scores.dtype.kind not in "if":
        raise vocabulary.fail(f"{key} is not an array of numbers")
    if len(scores) != len(vocabulary.tokens):
        raise vocabulary.fail(f"{key} has {len(scores)} entries for {len(vocabulary.tokens)} tokens")
    with np.errstate(all="ignore"):  # numbers beyond float32 are infinite; NaN is refused below
        listed: list[float] = scores.astype(np.float32).astype(np.float64).tolist()
    if any(map(math.isnan, listed)):
        raise vocabulary.fail(f"{key} {next(i for i, score in enumerate(listed) if math.isnan(score))} is not a number")
    return listed


def _with_space(text: str, first: bool) -> str:
    return (" " + text if first else text).replace(" ", SPACE)


def _escaped(text: str, first: bool) -> str:
    return text.replace(" ", SPACE)
