"""The image processor of LLaVA-NeXT, against transformers' Pillow processor and its counts of rows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clip_towers import NEEDS_TRANSFORMERS, SIZES, any_token, noise, tower_config, write_settings
from sporelm.errors import ModelError
from sporelm.models.towers.llava_next import LlavaNextConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.llava_next import LlavaNextProcessor, from_folder, from_metadata

SIZE = 42
PINPOINTS = [[42, 84], [84, 42], [84, 84], [126, 42], [42, 126]]
SQUARE = {"height": SIZE, "width": SIZE}
SETTINGS: list[dict[str, Any]] = [
    {"size": {"shortest_edge": SIZE}, "crop_size": SQUARE, "image_grid_pinpoints": PINPOINTS},
    {
        "size": SQUARE,
        "crop_size": SQUARE,
        "image_grid_pinpoints": [[42, 168], [42, 42]],
        "resample": 2,
        "image_mean": [0.5, 0.5, 0.5],
    },
]
MORE_SIZES = [*SIZES, (5000, 3), (2, 4000), (83, 84), (85, 43), (127, 41)]


def config_of(**fields: Any) -> LlavaNextConfig:
    return tower_config(LlavaNextConfig, SIZE, **{"features": (1,), "pinpoints": ((42, 84),), **fields})


@pytest.mark.parametrize("values", SETTINGS, ids=range(len(SETTINGS)))
def test_equals_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=NEEDS_TRANSFORMERS)
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor as Theirs

    theirs, config = LlavaNextImageProcessorPil(**values), config_of()
    ours = from_folder(write_settings(tmp_path, values), config, any_token)
    counting: Any = SimpleNamespace(
        image_processor=theirs,
        patch_size=14,
        num_additional_image_tokens=1,
        vision_feature_select_strategy="default",
        image_token="<image>",
    )
    counting._get_number_of_features = lambda *sizes: Theirs._get_number_of_features(counting, *sizes)
    counting._get_unpadded_features = lambda *sizes: Theirs._get_unpadded_features(counting, *sizes)
    for width, height in MORE_SIZES:
        picture = noise(width, height)
        found = theirs.preprocess([picture], input_data_format="channels_last")
        pixels = np.asarray(found["pixel_values"][0])
        text, (image,) = ours.process(picture)
        tiles = np.concatenate([cut_patches(tile, config.patch) for tile in pixels])
        assert np.array_equal(image.patches, tiles), (width, height)
        wanted = Theirs.replace_image_token(counting, found, 0)
        assert text == wanted, (width, height)
        assert image.num_rows == ours.count_rows(width, height) == wanted.count("<image>")


def test_layout_of_a_wide_picture(tmp_path: Path) -> None:
    """A picture of 80 x 20 pixels is resized to 84 x 21: 1.5 of 3 lines of patches; one is left."""
    ours = from_folder(write_settings(tmp_path, SETTINGS[0]), config_of(), any_token)
    (image,) = ours.process(noise(80, 20)).images
    assert image.grids == ((1, 3, 3),) * 3
    assert image.layout == (1, 2, 1, 0, 1, 6)
    assert image.num_rows == 9 + 1 * 7
    (image,) = ours.process(noise(30, 84)).images
    assert image.layout == (2, 1, 0, 0, 6, 3)
    assert image.num_rows == 9 + 6 * 4


def test_tiles_without_ends_of_lines(tmp_path: Path) -> None:
    """mmproj files without spatial_unpad: all rows of all tiles."""
    config = config_of(has_newline=False, pinpoints=((42, 84), (84, 84)))
    metadata = {"clip.vision.image_mean": [0.5] * 3, "clip.vision.image_std": [0.5] * 3}
    ours = from_metadata(metadata, config, any_token)
    (image,) = ours.process(noise(84, 10)).images
    assert (image.layout, image.num_rows, ours.count_rows(84, 10)) == ((), 27, 27)
    written = {key: value for key, (_, value) in ours.to_metadata().items()}
    assert written == metadata


def test_sizes_of_config_json_where_the_processor_has_none(tmp_path: Path) -> None:
    values = {key: value for key, value in SETTINGS[0].items() if key != "image_grid_pinpoints"}
    ours = from_folder(write_settings(tmp_path, values), config_of(), any_token)
    assert isinstance(ours, LlavaNextProcessor)
    assert ours.pinpoints == ((42, 84),)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_grid_pinpoints": []}, "it must be a list of heights and widths"),
        ({"image_grid_pinpoints": [42, 84]}, "it must be a list of heights and widths"),
        ({"image_grid_pinpoints": [[42, 84, 1]]}, r"image_grid_pinpoints has \[42, 84, 1\]"),
        ({"image_grid_pinpoints": [[42, 85]]}, "multiples of 42"),
        ({"image_grid_pinpoints": [[42, 0]]}, r"image_grid_pinpoints has \[42, 0\]"),
        ({"image_grid_pinpoints": [[420, 420]]}, "of at most 64 tiles"),
        ({"image_grid_pinpoints": [["42", 42]]}, "image_grid_pinpoints has"),
        ({"crop_size": 41}, "makes pictures of 41x41 pixels, but the vision tower takes 42x42"),
        ({"size": 41}, "makes pictures of 41x41 pixels, but the vision tower takes 42x42"),
    ],
)
def test_rejects_impossible_settings(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_settings(tmp_path, SETTINGS[0] | values)
    with pytest.raises(ModelError, match=message):
        from_folder(folder, config_of(), any_token)
