"""Image encoders: values of other types are refused with a remedy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from drawn_families import ENCODERS
from sporelm import LLM, ImageTextEncoder
from sporelm.errors import RequestError

PIXELS = np.zeros((9, 8, 3), np.uint8)
NOT_LISTS = ["a.png", b"GIF89a", Path("a.png"), PIXELS, PIXELS[None], Image.fromarray(PIXELS), None, 3]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageTextEncoder]:
    with ImageTextEncoder(ENCODERS[0].write(tmp_path_factory.mktemp("clip")), threads=1) as encoder:
        yield encoder


@pytest.mark.parametrize("images", NOT_LISTS, ids=lambda value: type(value).__name__)
def test_pictures_are_a_list(encoder: ImageTextEncoder, images: Any) -> None:
    with pytest.raises(RequestError, match=r"^images: not a list \(got .*\)\. Give a list of pictures\.$"):
        encoder.embed_images(images)


@pytest.mark.parametrize("texts", [None, 3, b"cat", {"cat": 1}, np.zeros(3)], ids=lambda value: type(value).__name__)
def test_texts_are_a_text_or_a_list(encoder: ImageTextEncoder, texts: Any) -> None:
    with pytest.raises(RequestError, match=r"^texts: not a list .*Give a text or a list of texts"):
        encoder.embed_texts(texts)


@pytest.mark.parametrize("text", [None, 3, b"cat", ["cat"]])
def test_each_text_is_a_string(encoder: ImageTextEncoder, text: Any) -> None:
    with pytest.raises(RequestError, match=r"^text: not a string"):
        encoder.embed_texts([text])


def test_one_text_is_not_taken_apart(encoder: ImageTextEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "text_ids", lambda text, truncate: [len(text), 1])
    found = encoder.embed_texts("a cat")
    assert found.shape == (1, encoder.config.columns)
    assert np.array_equal(found, encoder.embed_texts(["a cat"]))


@pytest.mark.parametrize("path", [None, 3, "", b"clip"])
def test_the_folder_is_a_path(path: Any) -> None:
    with pytest.raises(RequestError, match="the path of an image encoder is"):
        ImageTextEncoder(path)


@pytest.mark.parametrize("images", NOT_LISTS, ids=lambda value: type(value).__name__)
def test_pictures_of_a_prompt_are_a_list(images: Any) -> None:
    """They are checked before anything of the model is used."""
    llm = LLM.__new__(LLM)
    with pytest.raises(RequestError, match="images: not a list"):
        llm.prompt_with_images("Look.", images)
    with pytest.raises(RequestError, match="the text is"):
        llm.prompt_with_images(b"Look.", [PIXELS])  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="images: not a list"):
        llm.embed(images=images)
