"""The encoding pipeline of our own tokenizers: special tokens, then the normalizer, then the model."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt
from sporelm.text.tokenizers.special_token_splitter import SpecialTokenSplitter


@dataclass(frozen=True)
class Encoding:
    """The result of encoding, in the shape of the `tokenizers` library's."""

    ids: list[int]


class TokenizerModel(Protocol):
    """A model that turns normalized text without special tokens into ids."""

    def encode(self, text: str) -> list[int]: ...


class TokenizerPipeline:
    """Takes the place of a `tokenizers.Tokenizer` for vocabularies that we encode ourselves."""

    def __init__(
        self,
        splitter: SpecialTokenSplitter,
        model: TokenizerModel,
        normalize: Callable[[str, bool], str] | None = None,
        *,
        prefix_once: bool = False,
    ) -> None:
        """
        splitter       separates the special tokens from the text
        normalize      (text, whether a prefix space may be added) -> the text as the model reads it; None: unchanged
        prefix_once    a prefix space may be added at the beginning only, not after every special token
        """
        self._splitter = splitter
        self.model = model
        self._normalize = normalize
        self._prefix_once = prefix_once

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """Return the ids of `text`, without BOS and EOS."""
        del add_special_tokens  # `Tokenizer` adds them
        return Encoding(self._encode_parts(self._splitter.split(text)))

    def encode_prompt(self, prompt: RenderedPrompt, control: Collection[int]) -> list[int]:
        """Return the ids of a rendered prompt; tokens of `control` come from template text alone."""
        return self._encode_parts(self._splitter.split_prompt(prompt, control))

    def _encode_parts(self, parts: list[str | int]) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(parts):
            if not isinstance(part, str):
                ids.append(part)
            elif self._normalize is None:
                ids += self.model.encode(part)
            else:
                ids += self.model.encode(self._normalize(part, i == 0 or not self._prefix_once))
        return ids
