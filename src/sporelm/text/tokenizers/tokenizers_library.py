"""Safe use of the `tokenizers` library: files that make it panic are refused first, and its errors become ours.

A panic prints a report on stderr before Python sees an exception, and one inside a destructor aborts the process.
Panics that no check predicts are provoked while a file is loaded, and their reports are kept from stderr.
"""

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sporelm.errors import ModelFileError, SporeError
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.precompiled_charsmap import parse_charsmap
from sporelm.text.tokenizers.rust_panics import hide_panics
from sporelm.text.tokenizers.tokenizer_json_errors import explain_refusal, translate_library_error

log = logging.getLogger(__name__)

# Texts that make a faulty part panic: the empty one, one letter, letters of several bytes, combining marks, spaces.
PROBES = ("", "a", "aab xx", " é中🙂e\u0301\n ", "x <x>")
MAX_CACHED_WORDS = 2048  # in the cache of a library's model; a word of 256 letters takes 8 kB


@contextmanager
def catch_library_errors(label: str) -> Iterator[None]:
    """Turn all errors of the library into ModelFileError. A panic is a BaseException that it does not export."""
    try:
        with hide_panics():
            yield
    except (SporeError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelFileError(f"{label} cannot be read: {describe_error(error)}") from None


def describe_error(error: BaseException) -> str:
    """Return an error of the library, or of another one, in one line without Rust's terms."""
    return translate_library_error(summarize_error(error))


def parse_tokenizer_json(data: str | bytes, label: str) -> Any:
    """Return the `tokenizers.Tokenizer` of a tokenizer.json that passed `check_tokenizer_json`. To be called inside
    `catch_library_errors`.

    Raises ModelFileError that names the part which the library refuses, or the text on which it fails.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data) if isinstance(data, str) else Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ModelFileError(f"{label}: {explain_refusal(json.loads(data), str(error))}") from None
    tokenizer.no_truncation()  # a prompt is never truncated
    tokenizer.no_padding()
    for text in PROBES:
        try:
            tokenizer.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:  # such as a letter without a token: no fault of the file
            log.debug("%s: %r: %s", label, text, error)
        except BaseException:
            raise ModelFileError(
                f"{label}: the library fails on the text {text!r}. Correct the normalizer and the pre_tokenizer, or "
                "use a GGUF file of the model."
            ) from None
    return tokenizer


def limit_word_cache(tokenizer: Any) -> None:
    """Limit the word cache of a `tokenizers.Tokenizer`, which by default has 10,000 entries of up to 8 kB each.

    Without a pre-tokenizer it would cache whole texts, which seldom repeat: then it is disabled. Libraries before 0.21
    have no way to set the limit.
    """
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(0 if tokenizer.pre_tokenizer is None else MAX_CACHED_WORDS)


def check_tokenizer_json(spec: Mapping[str, Any], label: str) -> None:
    """Raise ModelFileError for contents of a tokenizer.json that make the library panic."""
    for part in _flatten(spec.get("normalizer"), "normalizers"):
        kind, pattern = part.get("type"), part.get("pattern")
        if kind == "Precompiled" and not _is_valid_charsmap(part.get("precompiled_charsmap")):
            raise ModelFileError(f"{label}: the normalizer's precompiled_charsmap is damaged")
        empty = isinstance(pattern, Mapping) and "" in pattern.values()
        if (kind == "Replace" and empty) or (kind == "Prepend" and part.get("prepend") == ""):
            raise ModelFileError(f"{label}: the normalizer's {kind} is empty; it must have a pattern or a string")
    for part in _flatten(spec.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "FixedLength" and part.get("length") == 0:
            raise ModelFileError(f"{label}: the pre_tokenizer's FixedLength is 0; it must be at least 1")
    for part in _flatten(spec.get("decoder"), "decoders"):
        if part.get("type") == "Strip" and part.get("stop") not in (0, None):
            raise ModelFileError(
                f"{label}: the decoder's Strip removes characters from the ends of tokens, which makes the library "
                f"fail on short tokens (got stop {part['stop']!r:.20}; allowed 0). Set it to 0."
            )
    for part in _flatten(spec.get("post_processor"), "processors"):
        if part.get("type") == "TemplateProcessing":
            _check_template(part, label)
    model = spec.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("merges"), list) and isinstance(model.get("vocab"), dict):
        _check_merges(model, label)


def _flatten(component: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield a component of the pipeline and, if it is a sequence, all components in it."""
    stack = [component]
    while stack:
        component = stack.pop()
        if isinstance(component, Mapping):
            yield component
            inner = component.get(key)
            stack += inner if isinstance(inner, list) else []


def _check_template(part: Mapping[str, Any], label: str) -> None:
    special_tokens = part.get("special_tokens")
    single, pair = (value if isinstance(value, list) else [] for value in (part.get("single"), part.get("pair")))
    for entry in special_tokens.values() if isinstance(special_tokens, Mapping) else ():
        if isinstance(entry, Mapping) and entry.get("ids") == []:
            raise ModelFileError(f"{label}: the post_processor's special token {entry.get('id')!r:.60} has no ids")
    for index, piece in enumerate([*single, *pair]):
        if not isinstance(piece, Mapping):
            continue  # reported by the library
        special, sequence = piece.get("SpecialToken"), piece.get("Sequence")
        name = special.get("id") if isinstance(special, Mapping) else None
        if isinstance(name, str) and not (isinstance(special_tokens, Mapping) and name in special_tokens):
            raise ModelFileError(f"{label}: the post_processor adds {name[:60]!r}, which is not in its special_tokens")
        if index < len(single) and isinstance(sequence, Mapping) and sequence.get("id") != "A":
            raise ModelFileError(f"{label}: the post_processor's template for one text must name it 'A'")
    has_text = any("Sequence" in piece for piece in single if isinstance(piece, Mapping))
    if isinstance(part.get("single"), list) and not has_text:
        raise ModelFileError(
            f"{label}: the post_processor's template for one text does not contain the text. Add 'A' to it."
        )


def _check_merges(model: Mapping[str, Any], label: str) -> None:
    """Check that both parts of every merge, joined without the second one's prefix, are a token."""
    prefix = model.get("continuing_subword_prefix") or ""
    vocab = model["vocab"]
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(word, str) for word in pair):
            continue  # the library reports it
        first, second = pair
        if not second.startswith(prefix) or first + second[len(prefix) :] not in vocab:
            raise ModelFileError(f"{label}: the result of the merge {' '.join(pair)[:60]!r} is not a token")


def _is_valid_charsmap(text: Any) -> bool:
    """Whether all lookups in SentencePiece's compiled character map stay inside it."""
    try:
        data = base64.b64decode(text, validate=True)
        parse_charsmap(data, "the map")
    except (TypeError, ValueError, ModelFileError):  # binascii.Error is a ValueError
        return False
    return bool(data)
