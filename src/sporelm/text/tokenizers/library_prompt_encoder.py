"""Encodes rendered prompts with the `tokenizers` library, which reads only a text, not the origin of its parts.

The library encodes the whole text as usual. If its control tokens are exactly those of the template text, that is the
result, so ordinary content keeps its ids. Otherwise content contains the text of a control token. Then each control
token of the template is replaced by a placeholder that no content can guess, and the library encodes the text with its
special tokens disabled.
"""

import json
import unicodedata
from collections.abc import Collection
from secrets import token_hex
from typing import Any, NamedTuple

from sporelm.errors import ModelFileError
from sporelm.text.chat_templates.rendered_prompt import Origins, RenderedPrompt

LARGE_TEXT_CHARACTERS = 8192  # encoding a longer text would noticeably block other threads


class TokenSpan(NamedTuple):
    """The position of a control token in a text, without the spaces that it strips."""

    token: int
    start: int
    end: int


class LibraryPromptEncoder:
    """Encodes rendered prompts, and texts that are all content. Safe to share between threads."""

    def __init__(self, tokenizer: Any, control: Collection[int], unknown: int | None) -> None:
        """
        tokenizer  a `tokenizers.Tokenizer`
        control    the ids of the tokens that content may not become
        unknown    the id of the unknown token, which may be one of them
        """
        self._tokenizer = tokenizer
        self._unknown = unknown
        self._added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
        self._control = frozenset(control)
        self._texts = {
            token: self._added[token].content if token in self._added else str(tokenizer.id_to_token(token))
            for token in control
        }
        # A token of one letter may always stand for that letter.
        self._forbidden = frozenset(t for t, text in self._texts.items() if t != unknown and len(text) > 1)
        self._finder: _TemplateTokenFinder | None = None
        self._placeholder_tokenizer: _PlaceholderTokenizer | None = None

    def encode_content(self, text: str) -> list[int]:
        """Return the ids of a text in which nothing is a control token."""
        return self._encode_with_placeholders(text, [])

    def encode_prompt(self, prompt: RenderedPrompt) -> list[int]:
        """Return the ids of a rendered prompt; control tokens come from template text alone."""
        text = prompt.text
        if not any(is_template for _, is_template in prompt.spans):
            return self.encode_content(text)
        encoding = encode_text(self._tokenizer, text)
        ids: list[int] = encoding.ids
        if all(is_template for _, is_template in prompt.spans):
            return ids
        if self._finder is None:
            self._finder = _TemplateTokenFinder(self._tokenizer, self._added)
        expected = [span for span in self._finder.find_spans(prompt) if span.token in self._control]
        if self._control.isdisjoint(ids):
            spans = []
        else:
            spans = [
                find_token_span(token, start, end, text, self._texts[token])
                for token, (start, end) in zip(ids, encoding.offsets, strict=True)
                if token in self._control
            ]
        spans = [span for span in spans if self._is_literal(span, prompt.origins, text)]
        return ids if spans == expected else self._encode_with_placeholders(text, expected)

    def _is_literal(self, span: TokenSpan, origins: Origins, text: str) -> bool:
        """Whether a control token stands for its own text: it neither replaces an unknown letter nor did the model
        merge it from letters of template text."""
        if span.token == self._unknown and text[span.start : span.end] != self._texts[span.token]:
            return False
        return span.token in self._added or not origins.is_template(span.start, span.end)

    def _encode_with_placeholders(self, text: str, spans: list[TokenSpan]) -> list[int]:
        """Return the ids of a text with control tokens at these positions and nowhere else."""
        for hardened in (False, True):
            tokenizer = self._placeholder_tokenizer  # other threads may replace it
            if tokenizer is None or tokenizer.is_nonce_in(text) or tokenizer.hardened < hardened:
                hardened = hardened or (tokenizer is not None and tokenizer.hardened)
                model = remove_control_tokens(self._tokenizer.model, self._texts) if hardened else None
                tokenizer = _PlaceholderTokenizer(self._tokenizer, self._added, self._control, model)
                self._placeholder_tokenizer = tokenizer
            ids, other_tokens = tokenizer.encode(text, spans)
            if self._forbidden.isdisjoint(other_tokens):
                return ids
        token = min(self._forbidden.intersection(other_tokens))
        raise ModelFileError(
            f"tokenizer: cannot keep the text from becoming the control token {self._texts[token]!r:.60}. Remove it"
        )


class _TemplateTokenFinder:
    """Finds the added tokens in template text by the library's rules, whatever the content around it is."""

    def __init__(self, tokenizer: Any, added: dict[int, Any]) -> None:
        from tokenizers import Tokenizer as LibraryTokenizer
        from tokenizers.models import WordLevel

        self._library = LibraryTokenizer(WordLevel({_SYMBOL: 0}, unk_token=_SYMBOL))  # all letters are one token
        if tokenizer.normalizer is not None:
            self._library.normalizer = tokenizer.normalizer
        self._library.add_tokens([token for _, token in sorted(added.items())])
        self._tokens = {self._library.token_to_id(token.content): (i, token.content) for i, token in added.items()}

    def find_spans(self, prompt: RenderedPrompt) -> list[TokenSpan]:
        """Return the added tokens that lie entirely in template text."""
        short_spans: list[tuple[str, bool]] = []
        offsets: list[tuple[int, int]] = []  # where each span begins: in the shortened text, and in the prompt
        short_offset = offset = 0
        for text, is_template in prompt.spans:
            short = text if is_template else _shorten(text)
            short_spans.append((short, is_template))
            offsets.append((short_offset, offset))
            short_offset += len(short)
            offset += len(text)
        text = "".join(short for short, _ in short_spans)
        origins = Origins(short_spans)
        encoding = encode_text(self._library, text)
        result = []
        index = 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self._tokens:
                continue
            span = find_token_span(self._tokens[token][0], start, end, text, self._tokens[token][1])
            if not origins.is_template(span.start, span.end):
                continue
            while index + 1 < len(offsets) and offsets[index + 1][0] <= span.start:
                index += 1
            shift = offsets[index][1] - offsets[index][0]
            result.append(TokenSpan(span.token, span.start + shift, span.end + shift))
        return result


_SYMBOL, _LETTER = "\ue000", "\u2c6f"  # a symbol and a letter that no token begins or ends with
_JOINERS = "\u200c\u200d"


def _shorten(content: str) -> str:
    """Return a short substitute for content that keeps the class of its first and last character: letter, space or
    other."""
    ends = content if len(content) < 3 else content[0] + content[-1]
    return "".join(_LETTER if _is_letter(each) else " " if each.isspace() else _SYMBOL for each in ends)


def _is_letter(character: str) -> bool:
    """Whether a character is part of a word to the library, as in the regular expression \\w (UTS #18)."""
    category = unicodedata.category(character)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or character in _JOINERS


class _PlaceholderTokenizer:
    """A tokenizer with the same model that reads control tokens as plain text, except at given positions."""

    def __init__(self, tokenizer: Any, added: dict[int, Any], control: Collection[int], model: Any) -> None:
        """`model` cannot produce control tokens; None: the tokenizer's own model."""
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as LibraryTokenizer

        self.hardened = model is not None
        self._library = library = LibraryTokenizer(tokenizer.model if model is None else model)
        if tokenizer.normalizer is not None:
            library.normalizer = tokenizer.normalizer
        if tokenizer.pre_tokenizer is not None:
            library.pre_tokenizer = tokenizer.pre_tokenizer
        library.add_tokens([_as_special(token) if i in control else token for i, token in sorted(added.items())])
        # A token that the hardened model does not have gets another id here.
        self._ids = {library.token_to_id(token.content): i for i, token in added.items()}
        self._nonce = f"{_SYMBOL}{token_hex(8)}"
        names = {flags: f"{self._nonce}{i}{_SYMBOL}" for i, flags in enumerate(_FLAGS)}
        library.add_tokens(
            [AddedToken(text, lstrip=left, rstrip=right, normalized=False) for (left, right), text in names.items()]
        )
        library.encode_special_tokens = True
        self._placeholders = {library.token_to_id(text) for text in names.values()}
        self._placeholder_texts = {i: names[token.lstrip, token.rstrip] for i, token in added.items()}

    def is_nonce_in(self, text: str) -> bool:
        """Whether a text contains the beginning of the placeholders."""
        return self._nonce in text

    def encode(self, text: str, spans: list[TokenSpan]) -> tuple[list[int], set[int]]:
        """Return the ids of `text` with the tokens of `spans` in it, and the set of its other ids."""
        parts = []
        end = 0
        for span in spans:
            parts += [text[end : span.start], self._placeholder_texts[span.token]]
            end = span.end
        library_ids: list[int] = encode_text(self._library, "".join([*parts, text[end:]])).ids
        remaining = iter(spans)
        other_tokens = {self._ids.get(token, token) for token in set(library_ids) - self._placeholders}
        ids = [next(remaining).token if i in self._placeholders else self._ids.get(i, i) for i in library_ids]
        return ids, other_tokens


_FLAGS = [(left, right) for left in (False, True) for right in (False, True)]


def _as_special(token: Any) -> Any:
    from tokenizers import AddedToken

    flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
    return AddedToken(token.content, **flags, special=True)


def find_token_span(token: int, start: int, end: int, text: str, content: str) -> TokenSpan:
    """Return the span of a token's text in `text[start:end]`, which the library reports with stripped spaces."""
    position = text.find(content, start, end)
    if position >= 0:
        return TokenSpan(token, position, position + len(content))
    inner = text[start:end].strip()  # the normalizer produced the content from other letters
    position = text.find(inner, start)
    return TokenSpan(token, position, position + len(inner))


def encode_text(tokenizer: Any, text: str) -> Any:
    """Return the encoding by a `tokenizers.Tokenizer`, or by a `TokenizerPipeline`.

    The library holds the GIL while it encodes one text, a second for a million characters, but not while it encodes a
    batch.
    """
    if len(text) > LARGE_TEXT_CHARACTERS and hasattr(tokenizer, "encode_batch"):
        (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding
    return tokenizer.encode(text, add_special_tokens=False)


def remove_control_tokens(model: Any, texts: dict[int, str]) -> Any:
    """Return the library's model without the control tokens `texts`, id -> text, so that merges cannot produce one."""
    from tokenizers import Tokenizer as LibraryTokenizer

    spec = json.loads(model.__getstate__())
    control = set(texts.values()) - {spec.get("unk_token")}
    names = {text: f"{_SYMBOL}{token}{_SYMBOL}" for token, text in texts.items() if text in control}
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
