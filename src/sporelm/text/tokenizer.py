"""The tokenizer every part of the program uses: text to ids, ids to text."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sporelm.errors import ModelFileError, RequestError
from sporelm.text.library_prompts import LibraryPrompts, encode
from sporelm.text.library_reasons import in_words
from sporelm.text.rendered_prompt import RenderedPrompt
from sporelm.text.special_tokens import SpecialTokens
from sporelm.text.token_bytes import Decoding
from sporelm.text.valid_text import invalid_character

log = logging.getLogger(__name__)
ASCII_CONTROLS = bytes([*range(0x20), 0x7F])
MOST_FOUND = 64  # sets of ids that `ids_with` keeps


@dataclass(frozen=True)
class Encoded:
    """What our own engines give back, in the shape of the `tokenizers` library."""

    ids: list[int]


class Tokenizer:
    """Turns text into token ids and back. Made by `load_tokenizer`; safe to share between threads.

    label             the file it came from, for messages
    chat_templates    name -> source; the one named "default" is the model's usual one
    special           what is added to texts, and what stops a generation
    """

    def __init__(
        self,
        parsing: Any,
        make_plain: Callable[[], Any] | None,
        *,
        decoding: Decoding,
        special: SpecialTokens,
        chat_templates: Mapping[str, str],
        vocab_size: int,
        missing_bytes: bytes = b"",
        skips_control_characters: bool = False,
        label: str,
    ) -> None:
        """
        parsing          a `tokenizers.Tokenizer`, or an engine of ours, that recognises special tokens in text
        make_plain       builds an engine's twin that takes them for plain text, called when first needed; None for the
                         library's tokenizers
        vocab_size       one more than the highest id
        missing_bytes    bytes that no token can write: text that holds one is refused rather than silently shortened
        skips_control_characters    the engine leaves out ASCII control characters among them, as llama.cpp does; that
                         is logged as a warning
        """
        self.label = label
        self.special = special
        self.chat_templates = chat_templates
        self.template_label = f"the chat template of {label}"  # what messages call it
        self.vocab_size = vocab_size
        self.decoding = decoding
        self._parsing = parsing
        self._make_plain = make_plain
        self._plain: Any = None
        self._prompts: LibraryPrompts | None = None
        self._found: dict[tuple[str, ...], frozenset[int]] = {}  # by `ids_with`
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

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of `text`.

        add_special_tokens    put BOS before it and EOS after it, as the model wants; never a second one
        parse_special         take the text of a control token for that token, not for its letters

        Raises RequestError for text that no ids can stand for.
        """
        self._check(text)
        with self._naming_failures():
            ids = self._parsed_ids(text) if parse_special else self._plain_ids(text)
        if not add_special_tokens:
            return ids
        if parse_special:
            return self._framed(ids)
        return [*self.special.prefix, *ids, *self.special.suffix]

    def encode_prompt(self, prompt: RenderedPrompt, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of a rendered chat. Control tokens come from the template's own text alone: the text of one in
        content is letters. Where content holds no such text the ids are those of `encode`.

        add_special_tokens    put BOS before it and EOS after it, where the template has not written them

        Raises as `encode`.
        """
        self._check(prompt.text)
        with self._naming_failures():
            engine_prompt = getattr(self._parsing, "encode_prompt", None)
            if engine_prompt is not None:
                ids: list[int] = engine_prompt(prompt, self.special.control)
            else:
                ids = self._library_prompts().encode_prompt(prompt)
        return self._framed(ids) if add_special_tokens else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int | None]:
        """The ids of two texts that are read together, and where the second begins, if it has a token type of its own.

        The text of a control token is letters here: a query cannot end itself. Raises RequestError as `encode`.
        """
        return self.pair_encoder(first)(second)

    def pair_encoder(self, first: str) -> Callable[[str], tuple[list[int], int | None]]:
        """`encode_pair` of one text with others, cut into tokens once. Raises RequestError as `encode`."""
        special = self.special
        before = [*special.prefix, *self.encode(first, add_special_tokens=False, parse_special=False), *special.between]

        def encode(second: str) -> tuple[list[int], int | None]:
            ids = self.encode(second, add_special_tokens=False, parse_special=False)
            return [*before, *ids, *special.suffix], len(before) if special.typed else None

        return encode

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False, continues: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        skip_special_tokens    leave control tokens out
        continues              the ids go on with a text: a space at their beginning is kept

        Raises RequestError for an id outside the vocabulary.
        """
        tokens = [self._checked(token) for token in ids]
        if skip_special_tokens:
            tokens = [token for token in tokens if token not in self.special.control]
        text = self.decoding.text(tokens)
        spaces = 0 if continues else self.decoding.leading_spaces
        return strip_leading(text, spaces)

    def token_bytes(self, token: int) -> bytes:
        """The bytes one token stands for. Raises RequestError for an id outside the vocabulary."""
        return self.decoding.token_bytes(self._checked(token))

    def id_to_piece(self, token: int) -> str:
        """One token as text of its own; part of a character shows as U+FFFD."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Each token as text of its own; parts of characters show as U+FFFD."""
        return [self.id_to_piece(token) for token in ids]

    def ids_with(self, texts: tuple[str, ...]) -> frozenset[int]:
        """The ids of tokens that have one of these texts. The first time it reads the whole vocabulary."""
        found = self._found.get(texts)
        if found is None:
            wanted = [text.encode("utf-8", "surrogatepass") for text in texts]
            every = ((token, self.token_bytes(token)) for token in range(self.vocab_size))
            found = frozenset(token for token, has in every if any(each in has for each in wanted))
            if len(self._found) >= MOST_FOUND:  # requests may name any texts
                self._found.clear()
            self._found[texts] = found
        return found

    def __repr__(self) -> str:
        return f"Tokenizer({self.label}, {self.vocab_size} tokens)"

    def _framed(self, ids: list[int]) -> list[int]:
        """`ids` with BOS before them and EOS after them, as the model wants, where they are not there yet."""
        prefix, suffix = list(self.special.prefix), list(self.special.suffix)
        if prefix and ids[: len(prefix)] == prefix:
            prefix = []
        if suffix and ids[-len(suffix) :] == suffix:
            suffix = []
        return prefix + ids + suffix

    def _parsed_ids(self, text: str) -> list[int]:
        ids: list[int] = encode(self._parsing, text).ids
        return ids

    def _plain_ids(self, text: str) -> list[int]:
        """The ids of a text in which nothing is a control token."""
        if self._make_plain is None:
            return self._library_prompts().encode_content(text)
        if self._plain is None:
            self._plain = self._make_plain()
        ids: list[int] = encode(self._plain, text).ids
        return ids

    def _library_prompts(self) -> LibraryPrompts:
        if self._prompts is None:
            added = self._parsing.get_added_tokens_decoder()
            unknown = self.special.names.get("unk_token", getattr(self._parsing.model, "unk_token", None))
            self._prompts = LibraryPrompts(
                self._parsing,
                self.special.control | {token for token in self.special.stop_ids if token in added},
                self._parsing.token_to_id(unknown) if isinstance(unknown, str) else None,
            )
        return self._prompts

    @contextmanager
    def _naming_failures(self) -> Iterator[None]:
        """Raise ModelFileError for whatever the library raises."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, RequestError, ModelFileError):
            raise
        except BaseException as error:  # a panic of the library is a BaseException
            raise ModelFileError(f"{self.label}: the tokenizer fails on a text: {in_words(one_line(error))}") from None

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.vocab_size:
            raise RequestError(f"token id {token} is outside the vocabulary of {self.vocab_size} tokens")
        return token

    def _check(self, text: str) -> None:
        if (wrong := invalid_character(text)) is not None:
            raise RequestError(f"the text holds {wrong}; remove it")
        data = text.encode() if self._missing_bytes else b""
        if self._missing_bytes and (left := data.translate(None, self._present_bytes)):
            if refused := left.translate(None, self._skipped_bytes):
                left = refused
            else:
                self._warn_of_skipped(text, left)
                return
            # A byte names its character: within valid UTF-8 the first one found decides the position.
            position = len(data[: data.index(left[:1])].decode("utf-8", "ignore"))
            raise RequestError(
                f"the text holds {text[position]!r} at position {position}, which this model's vocabulary cannot write "
                f"(byte 0x{left[0]:02X} has no token); remove it"
            )

    def _warn_of_skipped(self, text: str, skipped: bytes) -> None:
        first = chr(skipped[0])
        log.warning(
            "the text holds control characters that %s has no tokens for, and they are left out (%d of them; the first "
            "is %r at position %d)", self.label, len(skipped), first, text.index(first),
        )  # fmt: skip


def strip_leading(text: str, spaces: int) -> str:
    """`text` without up to `spaces` spaces at its beginning."""
    start = 0
    while start < spaces and text.startswith(" ", start):
        start += 1
    return text[start:]


def one_line(error: BaseException) -> str:
    """An error of a library as the end of a one-line message."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 200 else words[:197] + "..."
