"""The tokenizer that the whole program uses: text to ids, ids to text."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sporelm.errors import ModelFileError, RequestError
from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt
from sporelm.text.error_summary import summarize_error
from sporelm.text.tokenizers.library_prompt_encoder import LibraryPromptEncoder, encode_text
from sporelm.text.tokenizers.special_tokens import SpecialTokens
from sporelm.text.tokenizers.token_decoder import TokenDecoder
from sporelm.text.tokenizers.tokenizer_json_errors import translate_library_error
from sporelm.text.tokenizers.tokenizer_pipeline import TokenizerPipeline
from sporelm.text.unicode_check import find_invalid_character

log = logging.getLogger(__name__)
ASCII_CONTROLS = bytes([*range(0x20), 0x7F])
MAX_CACHED_SEARCHES = 64  # results that `ids_with` caches


class Tokenizer:
    """Turns text into token ids and back. Created by `load_tokenizer`; safe to share between threads.

    label             the file it came from, for messages
    chat_templates    name -> source; the one named "default" is the model's usual one
    special           the special tokens: what is added to texts, and what stops a generation
    """

    def __init__(
        self,
        pipeline: Any,
        plain_pipeline: TokenizerPipeline | None,
        *,
        decoder: TokenDecoder,
        special: SpecialTokens,
        chat_templates: Mapping[str, str],
        vocab_size: int,
        missing_bytes: bytes = b"",
        skips_control_characters: bool = False,
        label: str,
    ) -> None:
        """
        pipeline         a `tokenizers.Tokenizer` or a `TokenizerPipeline` that parses special tokens in text
        plain_pipeline   the same with control tokens as plain text; None for the library's tokenizers
        vocab_size       one more than the highest id
        missing_bytes    bytes without a token: text that contains one is refused rather than silently shortened
        skips_control_characters    the pipeline drops ASCII control characters among them, as llama.cpp does; that is
                         logged as a warning
        """
        self.label = label
        self.special = special
        self.chat_templates = chat_templates
        self.template_label = f"the chat template of {label}"  # its name in messages
        self.vocab_size = vocab_size
        self.decoder = decoder
        self._pipeline = pipeline
        self._plain_pipeline = plain_pipeline
        self._prompt_encoder: LibraryPromptEncoder | None = None
        self._search_cache: dict[tuple[str, ...], frozenset[int]] = {}  # of `ids_with`
        self._missing_bytes = missing_bytes
        skipped = ASCII_CONTROLS if skips_control_characters else b""
        self._skipped_bytes = bytes(sorted(set(skipped) & set(missing_bytes)))
        self._present_bytes = bytes(sorted(set(range(256)) - set(missing_bytes)))

    @property
    def bos_id(self) -> int | None:
        """The id of the token that begins a text, if the model has one."""
        return self.special.bos_id

    @property
    def eos_id(self) -> int | None:
        """The id of the token that ends a text, if the model has one."""
        return self.special.eos_id

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer."""
        return self.special.stop_ids

    @property
    def add_bos(self) -> bool:
        """Whether `encode` puts BOS before a text."""
        return self.special.bos_id is not None and self.special.bos_id in self.special.prefix

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template, if it has one."""
        return self.chat_templates.get("default")

    def control_id(self, text: str) -> int | None:
        """Return the id of a control token; None if the vocabulary has none of this text."""
        ids = self.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 and ids[0] in self.special.control else None

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Return the ids of `text`.

        add_special_tokens    put BOS before it and EOS after it, as the model wants; never a second one
        parse_special         parse the text of a control token as that token, not as plain text

        Raises RequestError for text that no ids can represent.
        """
        self._check(text)
        with self._translate_errors():
            ids = self._encode_with_special(text) if parse_special else self._encode_plain(text)
        if not add_special_tokens:
            return ids
        if parse_special:
            return self._add_prefix_and_suffix(ids)
        return [*self.special.prefix, *ids, *self.special.suffix]

    def encode_prompt(self, prompt: RenderedPrompt, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a rendered chat. Control tokens come from template text alone; in content, the text of one
        is plain text. If no content contains such text, the ids are those of `encode`.

        add_special_tokens    put BOS before it and EOS after it, where the template has not written them

        Raises as `encode`.
        """
        self._check(prompt.text)
        with self._translate_errors():
            if isinstance(self._pipeline, TokenizerPipeline):
                ids = self._pipeline.encode_prompt(prompt, self.special.control)
            else:
                ids = self._get_prompt_encoder().encode_prompt(prompt)
        return self._add_prefix_and_suffix(ids) if add_special_tokens else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        """Return the ids of two texts that are read together, and where the second begins if its token type differs.

        The text of a control token is plain text here: a query cannot end itself. Raises RequestError as `encode`.
        """
        return self.pair_encoder(first)(second)

    def pair_encoder(self, first: str) -> Callable[[str], tuple[list[int], int | None]]:
        """Return `encode_pair` with a fixed first text, which is encoded once. Raises RequestError as `encode`."""
        special = self.special
        first_ids = self.encode(first, add_special_tokens=False, parse_special=False)
        before = [*special.prefix, *first_ids, *special.separator]

        def encode(second: str) -> tuple[list[int], int | None]:
            ids = self.encode(second, add_special_tokens=False, parse_special=False)
            return [*before, *ids, *special.suffix], len(before) if special.has_pair_token_types else None

        return encode

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False, continues: bool = False) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        skip_special_tokens    omit control tokens
        continues              the ids continue a text: a leading space is kept

        Raises RequestError for an id outside the vocabulary.
        """
        tokens = [self._check_id(token) for token in ids]
        if skip_special_tokens:
            tokens = [token for token in tokens if token not in self.special.control]
        text = self.decoder.decode(tokens)
        spaces = 0 if continues else self.decoder.leading_spaces
        return strip_leading_spaces(text, spaces)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token. Raises RequestError for an id outside the vocabulary."""
        return self.decoder.token_bytes(self._check_id(token))

    def id_to_piece(self, token: int) -> str:
        """Return the text of one token; an incomplete character becomes U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; incomplete characters become U+FFFD."""
        return [self.id_to_piece(token) for token in ids]

    def ids_with(self, texts: tuple[str, ...]) -> frozenset[int]:
        """Return the ids of tokens that contain one of these texts. The first search reads the whole vocabulary."""
        ids = self._search_cache.get(texts)
        if ids is None:
            encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
            tokens = ((token, self.token_bytes(token)) for token in range(self.vocab_size))
            ids = frozenset(token for token, data in tokens if any(text in data for text in encoded))
            if len(self._search_cache) >= MAX_CACHED_SEARCHES:  # requests may search for any texts
                self._search_cache.clear()
            self._search_cache[texts] = ids
        return ids

    def __repr__(self) -> str:
        return f"Tokenizer({self.label}, {self.vocab_size} tokens)"

    def _add_prefix_and_suffix(self, ids: list[int]) -> list[int]:
        """Return `ids` with BOS before and EOS after them, as the model wants, unless they are present already."""
        prefix = list(self.special.prefix)
        suffix = list(self.special.suffix)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if suffix and ids[-len(suffix) :] == suffix:
            suffix = []
        return prefix + ids + suffix

    def _encode_with_special(self, text: str) -> list[int]:
        ids: list[int] = encode_text(self._pipeline, text).ids
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text without control tokens."""
        if self._plain_pipeline is None:
            return self._get_prompt_encoder().encode_content(text)
        ids: list[int] = encode_text(self._plain_pipeline, text).ids
        return ids

    def _get_prompt_encoder(self) -> LibraryPromptEncoder:
        if self._prompt_encoder is None:
            added = self._pipeline.get_added_tokens_decoder()
            unknown = self.special.names.get("unk_token", getattr(self._pipeline.model, "unk_token", None))
            self._prompt_encoder = LibraryPromptEncoder(
                self._pipeline,
                self.special.control | {token for token in self.special.stop_ids if token in added},
                self._pipeline.token_to_id(unknown) if isinstance(unknown, str) else None,
            )
        return self._prompt_encoder

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise ModelFileError for any error of the library."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, RequestError, ModelFileError):
            raise
        except BaseException as error:  # a panic of the library is a BaseException
            reason = translate_library_error(summarize_error(error))
            raise ModelFileError(f"{self.label}: the tokenizer fails on a text: {reason}") from None

    def _check_id(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary of {self.vocab_size} tokens")
        return token

    def _check(self, text: str) -> None:
        if (invalid := find_invalid_character(text)) is not None:
            raise RequestError(f"the text contains {invalid}; remove it")
        data = text.encode() if self._missing_bytes else b""
        if self._missing_bytes and (missing := data.translate(None, self._present_bytes)):
            if refused := missing.translate(None, self._skipped_bytes):
                missing = refused
            else:
                self._warn_of_skipped(text, missing)
                return
            # A byte identifies its character: in valid UTF-8 the first occurrence gives the position.
            position = len(data[: data.index(missing[:1])].decode("utf-8", "ignore"))
            raise RequestError(
                f"text: no token of the model represents the character at position {position} (got "
                f"{text[position]!r}, byte 0x{missing[0]:02X}). Remove it."
            )

    def _warn_of_skipped(self, text: str, skipped: bytes) -> None:
        first = chr(skipped[0])
        log.warning(
            "the text contains control characters without a token in %s, and they are dropped (%d of them; the first "
            "is %r at position %d)", self.label, len(skipped), first, text.index(first),
        )  # fmt: skip


def strip_leading_spaces(text: str, count: int) -> str:
    """Return `text` without up to `count` spaces at its beginning."""
    start = 0
    while start < count and text.startswith(" ", start):
        start += 1
    return text[start:]
