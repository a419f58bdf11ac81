"""The image processor of Gemma 3, against transformers' Pillow processor."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clip_towers import NEEDS_TRANSFORMERS, SIZES, any_token, noise, tower_config, write_settings
from sporelm.errors import ModelError
from sporelm.models.towers.gemma3 import Gemma3TowerConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.gemma3 import PanAndScan, from_folder, from_metadata

SIZE = 42
SQUARE = {"height": SIZE, "width": SIZE}
CONFIG = tower_config(Gemma3TowerConfig, SIZE, patch=7, merge=3)
PAN: dict[str, Any] = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 4}
PAN |= {"pan_and_scan_min_ratio_to_activate": 1.2}
SETTINGS: list[dict[str, Any]] = [
    {"size": SQUARE},
    {"size": SIZE, "resample": 3, "image_mean": [0.4, 0.5, 0.6], "do_pan_and_scan": None},
    {"size": SQUARE, **PAN},
    {"size": SQUARE, **PAN, "pan_and_scan_max_num_crops": 2, "pan_and_scan_min_crop_size": 35},
]
MORE_SIZES = [*SIZES, (100, 20), (20, 100), (131, 40), (47, 40), (48, 40), (40, 70), (41, 21)]


@pytest.mark.parametrize("values", SETTINGS[:1] + SETTINGS[2:], ids=["plain", "crops", "two crops"])
def test_equals_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=NEEDS_TRANSFORMERS)
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor as Theirs

    theirs = Gemma3ImageProcessorPil(**values)
    ours = from_folder(write_settings(tmp_path, values), CONFIG, any_token)
    sequence = f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n"
    writing: Any = SimpleNamespace(full_image_sequence=sequence)
    numbers = set()
    for width, height in MORE_SIZES:
        picture = noise(width, height)
        found = theirs.preprocess([picture], input_data_format="channels_last")
        text, images = ours.process(picture)
        assert len(images) == len(found["pixel_values"])
        for image, pixels in zip(images, found["pixel_values"], strict=True):
            assert np.array_equal(image.patches, cut_patches(np.asarray(pixels), CONFIG.patch)), (width, height)
            assert (image.grids, image.num_rows) == (((1, 6, 6),), 4)
        assert text == Theirs.replace_image_token(writing, found, 0)
        assert ours.count_rows(width, height) == 4 * len(images) == text.count("<image_soft_token>")
        numbers.add(len(images))
    most = values["pan_and_scan_max_num_crops"] if "do_pan_and_scan" in values else 0
    assert (min(numbers), max(numbers)) == (1, 1 + most)


def test_one_number_is_both_sides(tmp_path: Path) -> None:
    """transformers' default for this processor is a square."""
    ours = from_folder(write_settings(tmp_path, SETTINGS[1]), CONFIG, any_token)
    assert ours.settings.size == (SIZE, SIZE)
    assert ours.crops is None


def test_crops_never_lie_outside() -> None:
    """transformers makes an empty fourth crop of 5 pixels in crops of 2, and fails."""
    boxes = PanAndScan(1, 4, 1.2).boxes(1, 5)
    assert [(rows.start, rows.stop, columns.start, columns.stop) for rows, columns in boxes] == [
        (0, 1, 0, 2),
        (0, 1, 2, 4),
        (0, 1, 4, 5),
    ]


def test_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS[0])
    (tmp_path / "tokenizer_config.json").write_text('{"boi_token": "<b>", "eoi_token": "<e>", "image_token": "<i>"}')
    ours = from_folder(tmp_path, CONFIG, any_token)
    assert ours.process(noise(3, 3)).text == "\n\n<b><i><i><i><i><e>\n\n"
    assert (ours.placeholder, ours.row_token) == ("<b>", "<i>")


def test_settings_of_an_mmproj_file(tmp_path: Path) -> None:
    folder = from_folder(write_settings(tmp_path, SETTINGS[0]), CONFIG, any_token)
    metadata = {key: value for key, (_, value) in folder.to_metadata().items()}
    again = from_metadata(metadata, CONFIG, any_token)
    picture = noise(31, 99)
    wanted, found = folder.process(picture), again.process(picture)
    assert wanted.text == found.text
    assert np.array_equal(wanted.images[0].patches, found.images[0].patches)


@pytest.mark.parametrize(
    ("values", "processor", "message"),
    [
        ({"size": {"height": 41, "width": 42}}, {}, "makes pictures of 42x41 pixels, but the vision tower takes 42x42"),
        ({}, {"image_seq_length": 256}, "image_seq_length is 256; the vision tower returns 4 rows"),
        ({"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 0}, {}, "pan_and_scan_max_num_crops is 0"),
        ({"do_pan_and_scan": True, "pan_and_scan_min_crop_size": "a"}, {}, "pan_and_scan_min_crop_size is 'a'"),
        ({"do_resize": False}, {}, "do_resize is not supported"),
    ],
)
def test_rejects_impossible_settings(
    values: dict[str, Any], processor: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_settings(tmp_path, SETTINGS[0] | values, **processor)
    with pytest.raises(ModelError, match=message):
        from_folder(folder, CONFIG, any_token)
