"""Every family that sees against goldens, which `make_vision_goldens.py` writes: logits of prompts with pictures, the
pixels that towers read, and the vectors of image encoders. Nothing here needs torch or transformers."""

from pathlib import Path

import numpy as np
import pytest

from close import assert_close
from drawn_families import (
    ENCODERS,
    FAMILIES,
    SIZES,
    TEXT_IDS,
    DrawnEncoder,
    DrawnFamily,
    compared_positions,
    compared_tokens,
    draw_pixels,
    probe,
)
from internvl_chat import write_chat_folder
from sporelm import LLM
from sporelm.api.image_text_encoder import ImageTextEncoder
from sporelm.checkpoints.towers.supported_towers import IMAGE_ENCODERS, TOWERS
from sporelm.models.towers.paired_text import texts_as_input
from sporelm.vision.image_processor import ImageProcessor

GOLDENS = Path(__file__).parent / "goldens" / "vision"
PIXEL_STEP = 1 / 255  # of a channel, before normalization
Golden = dict[str, np.ndarray]


def load_golden(name: str) -> Golden:
    path = GOLDENS / f"{name}.npz"
    assert path.is_file(), f"{name} has no golden file: tests/models/make_vision_goldens.py {name} writes it"
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_logits_and_pixels(family: DrawnFamily, tmp_path: Path) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last."""
    golden = load_golden(family.name)
    with LLM(family.write(tmp_path / "model"), threads=1, max_context=512) as llm:
        for number, (text, pictures) in enumerate(family.prompts()):
            check_logits(llm, text, pictures, golden, number)
        assert llm.image_reader is not None
        check_pixels(llm.image_reader.processor, golden)


def check_logits(llm: LLM, text: str, pictures: list[np.ndarray], golden: Golden, number: int) -> None:
    """Compare those of a prompt, within 1e-4 of their range."""
    ids = llm.prompt_with_images(text, pictures)
    assert len(ids) == golden["counts"][number]
    found = llm.logits(ids)[compared_positions(len(ids)), compared_tokens(llm.config.vocab)]
    span = golden["ranges"][number]
    assert_close(found / span, golden["logits"][number] / span, "logits")


def test_the_authors_class_of_internvl(tmp_path: Path) -> None:
    """The same weights under the names of InternVLChatModel have the same logits."""
    golden, family = load_golden("internvl"), next(each for each in FAMILIES if each.name == "internvl")
    tiles = {"dynamic_image_size": True, "use_thumbnail": True, "max_dynamic_patch": family.settings["max_patches"]}
    folder = write_chat_folder(tmp_path / "chat", family.write(tmp_path / "model"), **tiles)
    with LLM(folder, threads=1, max_context=512) as llm:
        for number, (text, pictures) in enumerate(family.prompts()):
            check_logits(llm, text, pictures, golden, number)


def check_pixels(processor: ImageProcessor, golden: Golden) -> None:
    """Pixels within one step of a channel, and the same rows."""
    step = PIXEL_STEP / min(processor.settings.std)  # type: ignore[attr-defined]
    for size, rows, pixels in zip(SIZES, golden["rows"], golden["pixels"], strict=True):
        text, images = processor.process(draw_pixels(*size))
        assert processor.count_rows(*size) == text.count(processor.row_token) == rows
        assert sum(image.num_rows for image in images) == rows
        found = probe(np.concatenate([image.patches for image in images]))
        assert np.abs(found - pixels).max() <= step * (1 + 1e-3), size


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda encoder: encoder.name)
def test_image_encoders(encoder: DrawnEncoder, tmp_path: Path) -> None:
    golden = load_golden(encoder.name)
    pictures = [draw_pixels(*size) for size in SIZES]
    with ImageTextEncoder(encoder.write(tmp_path / "model"), threads=1) as model:
        texts = np.concatenate([model.runners[1].compute(texts_as_input([ids])) for ids in TEXT_IDS])
        for found, kind in ((model.embed_images(pictures, normalize=False), "images"), (texts, "texts")):
            span = np.ptp(golden[kind])
            assert_close(found / span, golden[kind] / span, "logits")
        for picture, pixels in zip(pictures, golden["pixels"], strict=True):
            (image,) = model.processor.process(picture).images
            step = PIXEL_STEP / min(model.processor.settings.std)  # type: ignore[attr-defined]
            assert np.abs(probe(image.patches) - pixels).max() <= step * (1 + 1e-3)


def test_every_family_is_drawn() -> None:
    assert {each.module for each in FAMILIES} == {each.module for each in TOWERS}
    assert {each.module for each in ENCODERS} == {each.module for each in IMAGE_ENCODERS}
    drawn: list[DrawnFamily | DrawnEncoder] = [*FAMILIES, *ENCODERS]
    names = [each.name for each in drawn]
    assert len(set(names)) == len(names)
    assert {path.stem for path in GOLDENS.glob("*.npz")} == set(names)
    assert {each.config["architectures"][0] for each in drawn} <= {
        name for each in (*TOWERS, *IMAGE_ENCODERS) for name in each.classes
    }
