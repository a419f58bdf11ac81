"""From a text to ids by the rules of SentencePiece: special tokens, spaces, then the model's pieces."""

from collections.abc import Callable, Collection
from typing import Protocol

from sporelm.text.fragments import Fragments
from sporelm.text.rendered_prompt import RenderedPrompt
from sporelm.text.tokenizer import Encoded


class Pieces(Protocol):
    """A model that turns normalized text into ids."""

    def ids(self, text: str) -> list[int]: ...


class SentencePieceEngine:
    """Stands where a `tokenizers.Tokenizer` stands for other vocabularies."""

    def __init__(
        self, fragments: Fragments, normalize: Callable[[str, bool], str], model: Pieces, *, prefix_once: bool = False
    ) -> None:
        """
        fragments      cuts out the special tokens
        normalize      a text, and whether the space in front of a text is due -> the text in the model's letters
        prefix_once    that space is due at the beginning only, not after every special token
        """
        self._fragments, self._normalize, self._model = fragments, normalize, model
        self._prefix_once = prefix_once

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoded:
        """The ids of `text`, without those that frame it."""
        del add_special_tokens  # the tokenizer adds them
        return Encoded(self._ids(self._fragments.split(text)))

    def encode_prompt(self, prompt: RenderedPrompt, control: Collection[int]) -> list[int]:
        """The ids of a rendered prompt; tokens of `control` come from the template's own text alone."""
        return self._ids(self._fragments.split_prompt(prompt, control))

    def _ids(self, parts: list[str | int]) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                ids += self._model.ids(self._normalize(part, i == 0 or not self._prefix_once))
            else:
                ids.append(part)
        return ids
