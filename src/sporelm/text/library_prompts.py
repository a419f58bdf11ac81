"""Encode rendered prompts with the `tokenizers` library, which sees only a text, not the origin of its parts.

The library encodes the whole text as usual. If its control tokens are exactly those of the template's own text, that is
the result, so ordinary content keeps its ids. Otherwise content contains the text of a control token. Then each control
token of the template is replaced by a placeholder that no content can guess, and the library encodes the text with its
special tokens disabled.
"""

import json
import unicodedata
from collections.abc import Collection
from secrets import token_hex
from typing import Any, NamedTuple

from sporelm.errors import ModelFileError
from sporelm.text.rendered_prompt import Origins, RenderedPrompt

LARGE = 8192  # characters; encoding a longer text would noticeably block other threads


class TokenSpan(NamedTuple):
    """The position of a control token in a text, without the spaces that it strips."""

    token: int
    start: int
    end: int


class LibraryPrompts:
    """Encodes rendered prompts, and texts that are all content. Safe to share between threads."""

    def __init__(self, parsing: Any, control: Collection[int], unknown: int | None) -> None:
        """
        parsing    a `tokenizers.Tokenizer`
        control    the ids of the tokens that content may not become
        unknown    the id of the unknown token, which may be one of them
        """
        self._parsing, self._unknown = parsing, unknown
        self._added: dict[int, Any] = parsing.get_added_tokens_decoder()
        self._control = frozenset(control)
        self._texts = {
            token: self._added[token].content if token in self._added else str(parsing.id_to_token(token))
            for token in control
        }
        # A token of one letter is that letter, whatever else it is for.
        self._forbidden = frozenset(t for t, text in self._texts.items() if t != unknown and len(text) > 1)
        self._finder: _Finder | None = None
        self._substitute: _PlaceholderTokenizer | None = None

    def encode_content(self, text: str) -> list[int]:
        """Return the ids of a text in which nothing is a control token."""
        return self._without_control(text, [])

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Return the ids of a rendered prompt; control tokens come from the template's own text alone."""
        text = prompt.text
        if not any(is_template for _, is_template in prompt.spans):
            return self.encode_content(text)
        encoding = encode(self._parsing, text)
        ids: list[int] = encoding.ids
        if all(is_template for _, is_template in prompt.spans):
            return ids
        if self._finder is None:
            self._finder = _Finder(self._parsing, self._added)
        wanted = [place for place in self._finder.places(prompt) if place.token in self._control]
        if self._control.isdisjoint(ids):
            found = []
        else:
            found = [
                self._span(token, start, end, text)
                for token, (start, end) in zip(ids, encoding.offsets, strict=True)
                if token in self._control
            ]
        found = [place for place in found if self._is_written(place, prompt.origins, text)]
        return ids if found == wanted else self._without_control(text, wanted)

    def _span(self, token: int, start: int, end: int, text: str) -> TokenSpan:
        return token_span(token, start, end, text, self._texts[token])

    def _is_written(self, place: TokenSpan, origins: Origins, text: str) -> bool:
        """Whether a control token was written as such: it neither replaces an unknown letter nor did the model merge it
        from the template's letters."""
        if place.token == self._unknown and text[place.start : place.end] != self._texts[place.token]:
            return False
        return place.token in self._added or not origins.is_template(place.start, place.end)

    def _without_control(self, text: str, places: list[TokenSpan]) -> list[int]:
        """Return the ids of a text with control tokens at these places and nowhere else."""
        for hardened in (False, True):
            substitute = self._substitute  # which other threads replace
            if substitute is None or substitute.is_in(text) or substitute.hardened < hardened:
                hardened = hardened or (substitute is not None and substitute.hardened)
                model = hardened_model(self._parsing.model, self._texts) if hardened else None
                substitute = self._substitute = _PlaceholderTokenizer(self._parsing, self._added, self._control, model)
            found, rest = substitute.encode(text, places)
            if self._forbidden.isdisjoint(rest):
                return found
        token = min(self._forbidden.intersection(rest))
        raise ModelFileError(
            f"tokenizer: cannot keep the text from becoming the control token {self._texts[token]!r:.60}. Remove it"
        )


class _Finder:
    """Finds the added tokens in the template's own text by the library's rules, whatever the content around it is."""

    def __init__(self, parsing: Any, added: dict[int, Any]) -> None:
        from tokenizers import Tokenizer as LibraryTokenizer
        from tokenizers.models import WordLevel

        self._library = LibraryTokenizer(WordLevel({_ANY: 0}, unk_token=_ANY))  # all letters are one token
        if parsing.normalizer is not None:
            self._library.normalizer = parsing.normalizer
        self._library.add_tokens([token for _, token in sorted(added.items())])
        self._tokens = {self._library.token_to_id(token.content): (i, token.content) for i, token in added.items()}

    def places(self, prompt: RenderedPrompt) -> list[TokenSpan]:
        """Return the added tokens that lie entirely in the template's own text."""
        spans: list[tuple[str, bool]] = []
        moved: list[tuple[int, int]] = []  # where each span begins: here, and in the prompt
        here = there = 0
        for text, is_template in prompt.spans:
            short = text if is_template else _stand_in_for(text)
            spans.append((short, is_template))
            moved.append((here, there))
            here, there = here + len(short), there + len(text)
        text, origins = "".join(short for short, _ in spans), Origins(spans)
        encoding = encode(self._library, text)
        found = []
        at = 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._tokens:
                continue
            place = token_span(self._tokens[token][0], start, end, text, self._tokens[token][1])
            if not origins.is_template(place.start, place.end):
                continue
            while at + 1 < len(moved) and moved[at + 1][0] <= place.start:
                at += 1
            shift = moved[at][1] - moved[at][0]
            found.append(TokenSpan(place.token, place.start + shift, place.end + shift))
        return found


_ANY, _LETTER = "\ue000", "\u2c6f"  # a sign and a letter that no token begins or ends with
_JOINERS = "\u200c\u200d"


def _stand_in_for(content: str) -> str:
    """Return a short substitute for content that keeps the class of its end characters: letter, space or other."""
    ends = content if len(content) < 3 else content[0] + content[-1]
    return "".join(_LETTER if _is_letter(each) else " " if each.isspace() else _ANY for each in ends)


def _is_letter(character: str) -> bool:
    """Whether the library takes a character for a part of a word, as regular expressions' \\w does (UTS #18)."""
    kind = unicodedata.category(character)
    return kind[0] in "LM" or kind in ("Nd", "Nl", "Pc") or character in _JOINERS


class _PlaceholderTokenizer:
    """A tokenizer with the same model that reads control tokens as plain text, except at given positions."""

    def __init__(self, parsing: Any, added: dict[int, Any], control: Collection[int], model: Any) -> None:
        """`model` is one that gives no control tokens; None: the tokenizer's own."""
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as LibraryTokenizer

        self.hardened = model is not None
        self._library = library = LibraryTokenizer(parsing.model if model is None else model)
        if parsing.normalizer is not None:
            library.normalizer = parsing.normalizer
        if parsing.pre_tokenizer is not None:
            library.pre_tokenizer = parsing.pre_tokenizer
        library.add_tokens([_as_special(token) if i in control else token for i, token in sorted(added.items())])
        # Where a hardened model lacks a token its copy here has another id.
        self._ids = {library.token_to_id(token.content): i for i, token in added.items()}
        self._nonce = f"{_ANY}{token_hex(8)}"
        names = {flags: f"{self._nonce}{i}{_ANY}" for i, flags in enumerate(_FLAGS)}
        library.add_tokens(
            [AddedToken(text, lstrip=left, rstrip=right, normalized=False) for (left, right), text in names.items()]
        )
        library.encode_special_tokens = True
        self._placeholders = {library.token_to_id(text) for text in names.values()}
        self._text = {i: names[token.lstrip, token.rstrip] for i, token in added.items()}

    def is_in(self, text: str) -> bool:
        """Whether a text holds what stands for control tokens."""
        return self._nonce in text

    def encode(self, text: str, places: list[TokenSpan]) -> tuple[list[int], set[int]]:
        """Return the ids of `text` with these tokens in it, and the set of the others."""
        parts = []
        end = 0
        for place in places:
            parts += [text[end : place.start], self._text[place.token]]
            end = place.end
        ids: list[int] = encode(self._library, "".join([*parts, text[end:]])).ids
        tokens = iter(places)
        rest = {self._ids.get(token, token) for token in set(ids) - self._placeholders}
        found = [next(tokens).token if i in self._placeholders else self._ids.get(i, i) for i in ids]
        return found, rest


_FLAGS = [(left, right) for left in (False, True) for right in (False, True)]


def _as_special(token: Any) -> Any:
    from tokenizers import AddedToken

    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token.content, **flags, special=True)


def token_span(token: int, start: int, end: int, text: str, content: str) -> TokenSpan:
    """Return the span of a token's own text in `text[start:end]`, which the library reports with stripped spaces."""
    at = text.find(content, start, end)
    if at >= 0:
        return TokenSpan(token, at, at + len(content))
    inner = text[start:end].strip()  # a normalizer made it of other letters
    at = text.find(inner, start)
    return TokenSpan(token, at, at + len(inner))


def encode(library: Any, text: str) -> Any:
    """Return the encoding of the library, or of an engine of ours.

    The library holds the GIL while it encodes one text, a second for a million characters, but not while it encodes a
    batch.
    """
    if len(text) > LARGE and hasattr(library, "encode_batch"):
        (encoding,) = library.encode_batch([text], add_special_tokens=False)
        return encoding
    return library.encode(text, add_special_tokens=False)


def hardened_model(model: Any, texts: dict[int, str]) -> Any:
    """Return the library's model without the control tokens `texts`, id -> text, so that merges cannot produce one."""
    from tokenizers import Tokenizer as LibraryTokenizer

    spec = json.loads(model.__getstate__())
    control = set(texts.values()) - {spec.get("unk_token")}
    names = {text: f"{_ANY}{token}{_ANY}" for token, text in texts.items() if text in control}
    vocab = spec["vocab"]
    if isinstance(vocab, dict):
        spec["vocab"] = {names.get(text, text): token for text, token in vocab.items()}
    else:
        unknown = spec.get("unk_id")
        spec["vocab"] = [
            [text if i == unknown else names.get(text, text), score] for i, (text, score) in enumerate(vocab)
        ]
    if "merges" in spec:
        prefix = spec.get("continuing_subword_prefix") or ""
        pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in spec["merges"]]
        spec["merges"] = [
            [first, second]
            for first, second in pairs
            if control.isdisjoint((first, second, first + second.removeprefix(prefix)))
        ]
    text = json.dumps({"version": "1.0", "added_tokens": [], "model": spec})
    return LibraryTokenizer.from_str(text).model
