"""BPE tokenizers from the metadata of GGUF files: byte-level ones ("gpt2"), and those of characters ("gemma4").

Rules: llama.cpp's llama-vocab.cpp (llm_tokenizer_bpe).
"""

import logging
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.text.bpe_engine import BpeEngine, Merging
from sporelm.text.gguf_roles import chat_templates, framing, named_ids, roles_of, special_tokens_of
from sporelm.text.gguf_vocabulary import Vocabulary, decoding_of_tokens
from sporelm.text.pre_tokenizers import PreTokenizer, cutter_of, pre_tokenizer
from sporelm.text.token_bytes import NEVER_IN_UTF8, SPACE, missing_bytes
from sporelm.text.tokenizer import Tokenizer, one_line

log = logging.getLogger(__name__)

# Pieces of a vocabulary in which no token goes on over a space.
_WORDS = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"


def tokenizer_of_gguf(metadata: Mapping[str, Any], label: str) -> Tokenizer:
    """The BPE tokenizer that the metadata of a GGUF file describes.

    Raises ModelFileError for a damaged vocabulary, UnsupportedModel for another kind or an unknown pre-tokenizer.
    """
    pre = _pre_tokenizer(metadata, label)
    vocabulary = Vocabulary(metadata, label)
    roles = roles_of(vocabulary)
    merging = _merging(vocabulary, pre, roles.control)
    named = named_ids(vocabulary, {})
    prefix, suffix = framing(vocabulary, named, bos=pre.adds_bos, eos=False)
    if pre.always_bos and "bos_token" in named:
        prefix = (named["bos_token"],)
    plain = roles.plain
    return Tokenizer(
        BpeEngine(roles.parsing, merging),
        lambda: BpeEngine(plain, merging),
        decoding=decoding_of_tokens(vocabulary, roles.special, pieces=pre.raw),
        special=special_tokens_of(vocabulary, roles, {}, prefix=prefix, suffix=suffix),
        chat_templates=chat_templates(vocabulary),
        vocab_size=len(vocabulary.tokens),
        missing_bytes=b"" if pre.raw else missing_bytes(vocabulary.ids.__contains__),
        skips_control_characters=True,
        label=label,
    )


def _pre_tokenizer(metadata: Mapping[str, Any], label: str) -> PreTokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model is None:
        raise ModelFileError(f"{label} holds no vocabulary (tokenizer.ggml.model); use a GGUF file that does")
    if model == "gemma4":
        return pre_tokenizer("gemma4", label)
    if model != "gpt2":
        raise UnsupportedModel(
            f"{label}: tokenizer model {str(model)[:60]!r} is not supported from GGUF; supported are 'gpt2', "
            "'gemma4' (BPE), 'llama', 't5' (SentencePiece), 'bert' (WordPiece), 'rwkv'; or use a folder with a"
            " tokenizer.json"
        )
    name = metadata.get("tokenizer.ggml.pre", "")
    if not isinstance(name, str):
        raise ModelFileError(f"{label}: tokenizer.ggml.pre is a {type(name).__name__}, not a str; the file is damaged")
    if not name:
        _warn_once(label)
        name = "default"
    return pre_tokenizer(name, label)


@cache
def _warn_once(label: str) -> None:
    log.warning(
        "%s does not say how text is cut before merging (tokenizer.ggml.pre): 'default' is used, as in llama.cpp, and "
        "answers may be worse; set the entry to the name of the model's own way",
        label,
    )


def _merging(vocabulary: Vocabulary, pre: PreTokenizer, control: frozenset[int]) -> Merging:
    from tokenizers.models import BPE

    # Letters never become a control token, so that plain text cannot forge one.
    control_texts = {text for text in map(vocabulary.tokens.__getitem__, control) if len(text) > 1}
    merges = vocabulary.merges()
    if not control_texts.isdisjoint(map("".join, merges)):
        merges = [pair for pair in merges if control_texts.isdisjoint(("".join(pair), *pair))]
    rules = pre.rules
    # At spaces too where no merge can reach over one: words repeat, lines need not.
    if pre.raw and not re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(map("".join, merges))):
        rules = (*rules, _WORDS)
    try:
        # The memory of pieces replaces the library's; with ignore_merges its answer would be `whole`'s.
        model = BPE(vocab=vocabulary.ids, merges=merges, cache_capacity=0, byte_fallback=pre.raw)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the library is a BaseException
        raise vocabulary.fail(f"the vocabulary cannot be built: {one_line(error)}") from None
    whole = vocabulary.ids if pre.ignore_merges else {}
    if pre.whole_newlines:
        whole = {
            text: token for text, token in vocabulary.ids.items() if text.startswith("\n") and not text.strip("\n")
        }
    whole = {text: token for text, token in whole.items() if text not in control_texts} if whole else {}
    letters = _letters(vocabulary) if pre.raw else None
    return Merging(cutter_of(rules), model, whole, raw=pre.raw, letters=letters)


def _letters(vocabulary: Vocabulary) -> frozenset[str] | None:
    """The characters that a vocabulary of characters can write; None where byte tokens write all."""
    if all(f"<0x{byte:02X}>" in vocabulary.ids for byte in range(256) if byte not in NEVER_IN_UTF8):
        return None
    return frozenset(text for text in vocabulary.tokens if len(text) == 1)
