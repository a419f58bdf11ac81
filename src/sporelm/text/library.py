"""The `tokenizers` library at arm's length: what makes it panic is refused before, and its failures become ours.

A panic prints a traceback of its own on stderr before Python hears of it, and one inside a destructor ends the process.
Panics that no check foresees are provoked while a file is loaded, and their tracebacks are kept from stderr.
"""

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sporelm.errors import ModelFileError, SporeError
from sporelm.text.charsmap import read_charsmap
from sporelm.text.library_reasons import explain, in_words
from sporelm.text.rust_panics import hide_panics
from sporelm.text.tokenizer import one_line

log = logging.getLogger(__name__)

# Texts that make a faulty part panic: the empty one, one letter, letters of several bytes, marks, spaces.
PROBES = ("", "a", "aab xx", " é中🙂e\u0301\n ", "x <x>")
MOST_WORDS = 2048  # whose ids a library's model keeps; a word of 256 letters takes 8 kB


@contextmanager
def guarded(label: str) -> Iterator[None]:
    """Turn whatever the library raises into a ModelFileError. A panic is a BaseException that it does not export."""
    try:
        with hide_panics():
            yield
    except (SporeError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ModelFileError(f"{label} cannot be read: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Return one line for what the library, or another, says, without Rust's own words."""
    return in_words(one_line(error))


def parse(data: str | bytes, label: str) -> Any:
    """Return the `tokenizers.Tokenizer` of the text of a tokenizer.json, which `refuse_panics` has seen. To be called
    inside `guarded`.

    Raises ModelFileError that names the part which the library does not take, or the text on which it fails.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data) if isinstance(data, str) else Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ModelFileError(f"{label}: {explain(json.loads(data), str(error))}") from None
    tokenizer.no_truncation()  # a prompt is never cut
    tokenizer.no_padding()
    for text in PROBES:
        try:
            tokenizer.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except Exception as error:  # such as a letter without a token: texts differ
            log.debug("%s: %r: %s", label, text, error)
        except BaseException:
            raise ModelFileError(
                f"{label}: the library fails on the text {text!r}. Correct the normalizer and the pre_tokenizer, or "
                "use a GGUF file of the model."
            ) from None
    return tokenizer


def remember_words(tokenizer: Any) -> None:
    """Bound what a `tokenizers.Tokenizer` keeps of the texts it has seen: by itself 10,000 words of up to 8 kB each.

    Where nothing cuts texts into words it keeps whole texts, which seldom come again: none, then. Libraries before
    0.21 cannot be told.
    """
    resize = getattr(tokenizer.model, "_resize_cache", None)
    if resize is not None:
        resize(0 if tokenizer.pre_tokenizer is None else MOST_WORDS)


def refuse_panics(spec: Mapping[str, Any], label: str) -> None:
    """Raise ModelFileError for contents of a tokenizer.json that the library does not survive."""
    for part in _parts(spec.get("normalizer"), "normalizers"):
        kind, pattern = part.get("type"), part.get("pattern")
        if kind == "Precompiled" and not _readable_charsmap(part.get("precompiled_charsmap")):
            raise ModelFileError(f"{label}: the normalizer's precompiled_charsmap is damaged")
        empty = isinstance(pattern, Mapping) and "" in pattern.values()
        if (kind == "Replace" and empty) or (kind == "Prepend" and part.get("prepend") == ""):
            raise ModelFileError(f"{label}: the normalizer's {kind} is empty, which nothing can be replaced by")
    for part in _parts(spec.get("pre_tokenizer"), "pretokenizers"):
        if part.get("type") == "FixedLength" and part.get("length") == 0:
            raise ModelFileError(f"{label}: the pre_tokenizer's FixedLength is 0; it must be at least 1")
    for part in _parts(spec.get("decoder"), "decoders"):
        if part.get("type") == "Strip" and part.get("stop") not in (0, None):
            raise ModelFileError(
                f"{label}: the decoder's Strip takes signs from the ends of tokens (got stop {part['stop']!r:.20}; "
                "allowed 0), at which the library fails for short tokens. Set it to 0."
            )
    for part in _parts(spec.get("post_processor"), "processors"):
        if part.get("type") == "TemplateProcessing":
            _check_template(part, label)
    model = spec.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("merges"), list) and isinstance(model.get("vocab"), dict):
        _check_merges(model, label)


def _parts(part: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """A part of the pipeline and, of a sequence, all its parts."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            inner = part.get(key)
            waiting += inner if isinstance(inner, list) else []


def _check_template(part: Mapping[str, Any], label: str) -> None:
    known = part.get("special_tokens")
    single, pair = (value if isinstance(value, list) else [] for value in (part.get("single"), part.get("pair")))
    for entry in known.values() if isinstance(known, Mapping) else ():
        if isinstance(entry, Mapping) and entry.get("ids") == []:
            raise ModelFileError(f"{label}: the post_processor's special token {entry.get('id')!r:.60} has no ids")
    for at, piece in enumerate([*single, *pair]):
        if not isinstance(piece, Mapping):
            continue  # reported by the library
        special, sequence = piece.get("SpecialToken"), piece.get("Sequence")
        name = special.get("id") if isinstance(special, Mapping) else None
        if isinstance(name, str) and not (isinstance(known, Mapping) and name in known):
            raise ModelFileError(f"{label}: the post_processor puts in {name[:60]!r}, which its special_tokens lack")
        if at < len(single) and isinstance(sequence, Mapping) and sequence.get("id") != "A":
            raise ModelFileError(f"{label}: the post_processor's template of one text must name it 'A'")
    has_text = any("Sequence" in piece for piece in single if isinstance(piece, Mapping))
    if isinstance(part.get("single"), list) and not has_text:
        raise ModelFileError(f"{label}: the post_processor's template of one text lacks the text. Put 'A' into it.")


def _check_merges(model: Mapping[str, Any], label: str) -> None:
    """Both parts of every merge, joined without the second one's prefix, must be a token."""
    prefix = model.get("continuing_subword_prefix") or ""
    vocab = model["vocab"]
    for merge in model["merges"]:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(word, str) for word in pair):
            continue  # the library says it
        first, second = pair
        if not second.startswith(prefix) or first + second[len(prefix) :] not in vocab:
            raise ModelFileError(f"{label}: the merge {' '.join(pair)[:60]!r} gives no token")


def _readable_charsmap(text: Any) -> bool:
    """Whether no lookup in SentencePiece's compiled character map leaves it."""
    try:
        data = base64.b64decode(text, validate=True)
        read_charsmap(data, "the map")
    except (TypeError, ValueError, ModelFileError):  # binascii.Error is a ValueError
        return False
    return bool(data)
