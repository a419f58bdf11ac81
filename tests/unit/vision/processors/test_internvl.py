"""The image processor of InternVL, against transformers' Pillow processor and the authors' rule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sporelm.errors import ModelFileError
from sporelm.models.towers.internvl import InternVLTowerConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.internvl import (
    InternVLProcessor,
    InternVLSettings,
    from_folder,
    from_metadata,
    list_grids,
)

SIZES = [(1, 1), (900, 2), (3, 211), (37, 53), (120, 80), (28, 28), (56, 28), (61, 60)]  # (width, height)
TILE, PATCH = 28, 7
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
SETTINGS: list[dict[str, Any]] = [
    {"image_mean": MEAN, "image_std": STD, "min_patches": 1, "max_patches": 12},
    {"min_patches": 3, "max_patches": 6, "resample": 2},
    {"image_mean": MEAN, "max_patches": 1, "rescale_factor": 0.01},
]


def tower_config(**more: Any) -> InternVLTowerConfig:
    """A tower for tiles of this size; only its sizes matter here."""
    shape: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "vocab": 1}
    rest: dict[str, Any] = {"context_length": 1, "eps": 1e-6, "rope_theta": 0.0, "name": "", "architecture": ""}
    size: dict[str, Any] = {"patch": PATCH, "merge": 2, "image_size": TILE, "grid_side": TILE // PATCH, "out_width": 8}
    return InternVLTowerConfig(model="internvl", **{**size, **shape, **rest, **more})


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)


def write_folder(folder: Path, name: str, settings: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps({"architectures": [name]}))
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def is_token(text: str) -> bool:
    return text == "<IMG_CONTEXT>"


@pytest.mark.parametrize("settings", SETTINGS, ids=["tiles", "few tiles", "one tile"])
def test_pixels_are_those_of_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[live]' compares live")
    module = pytest.importorskip(
        "transformers.models.got_ocr2.image_processing_pil_got_ocr2",
        reason="transformers is not installed: pip install 'sporelm[live]' compares live",
    )
    values = settings | {"size": {"height": TILE, "width": TILE}}
    theirs = module.GotOcr2ImageProcessorPil(**values)
    processor = from_folder(
        write_folder(tmp_path, "InternVLForConditionalGeneration", values), tower_config(), is_token
    )
    for width, height in SIZES:
        pixels = noise(width, height)
        wanted = theirs(Image.fromarray(pixels), crop_to_patches=True, return_tensors="np")
        tiles = np.asarray(wanted["pixel_values"], np.float32)
        found = processor.process(pixels)
        (image,) = found.images
        patches = np.concatenate([cut_patches(tile, PATCH) for tile in tiles])
        assert image.patches.shape == patches.shape
        assert np.abs(image.patches - patches).max() < 1e-6, (width, height)
        assert len(image.grids) == int(np.ravel(wanted["num_patches"])[0])
        assert image.num_rows == 4 * len(image.grids) == processor.count_rows(width, height)
        assert found.text == f"<img>{'<IMG_CONTEXT>' * image.num_rows}</img>"


def dynamic_tiles(image: Image.Image, min_num: int, max_num: int, side: int, *, thumbnail: bool) -> list[Image.Image]:
    """The rule of the authors' folders: the grid of the closest shape among all, in the order of their areas."""
    width, height = image.size
    shapes = {(i, j) for i in range(1, max_num + 1) for j in range(1, max_num + 1) if min_num <= i * j <= max_num}
    best, least = (1, 1), float("inf")
    for columns, rows in sorted(shapes, key=lambda shape: shape[0] * shape[1]):
        difference = abs(width / height - columns / rows)
        if difference < least:
            best, least = (columns, rows), difference
        elif difference == least and width * height > 0.5 * side * side * columns * rows:
            best = (columns, rows)
    columns, rows = best
    resized = image.resize((side * columns, side * rows))
    boxes = [(x * side, y * side, (x + 1) * side, (y + 1) * side) for y in range(rows) for x in range(columns)]
    tiles = [resized.crop(box) for box in boxes]
    return [*tiles, image.resize((side, side))] if thumbnail and len(tiles) > 1 else tiles


@pytest.mark.parametrize("thumbnail", [True, False])
@pytest.mark.parametrize("max_tiles", [1, 6, 12, 40])
def test_tiles_are_those_of_the_authors(max_tiles: int, thumbnail: bool, tmp_path: Path) -> None:
    config = tower_config(max_tiles=max_tiles, has_thumbnail=thumbnail)
    processor = from_folder(write_folder(tmp_path, "InternVLChatModel", {}), config, is_token)
    for width, height in SIZES:
        pixels = noise(width, height)
        tiles = dynamic_tiles(Image.fromarray(pixels), 1, max_tiles, TILE, thumbnail=thumbnail)
        normal = [(np.asarray(tile, np.float32) / 255 - np.float32(MEAN)) / np.float32(STD) for tile in tiles]
        wanted = np.concatenate([cut_patches(each.transpose(2, 0, 1), PATCH) for each in normal])
        (image,) = processor.process(pixels).images
        assert image.patches.shape == wanted.shape
        assert np.abs(image.patches - wanted).max() < 1e-6, (width, height)


def test_grids_are_all_of_the_allowed_areas() -> None:
    for least, highest in ((1, 12), (3, 5), (4, 4), (1, 1)):
        wanted = {(a, b) for a in range(1, highest + 1) for b in range(1, highest + 1) if least <= a * b <= highest}
        assert set(list_grids(least, highest)) == wanted
        areas = [columns * rows for columns, rows in list_grids(least, highest)]
        assert areas == sorted(areas)


def test_mmproj_files_have_the_settings() -> None:
    metadata = {"clip.vision.image_mean": np.array([0.5, 0.4, 0.3]), "clip.vision.image_std": [0.2, 0.3, 0.4]}
    processor = from_metadata(metadata, tower_config(min_tiles=2, max_tiles=7), is_token)
    assert (processor.settings.min_tiles, processor.settings.max_tiles, processor.settings.tile) == (2, 7, TILE)
    assert (processor.settings.mean, processor.settings.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    with pytest.raises(ModelFileError, match="image_mean"):
        from_metadata({}, tower_config(), is_token)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": {"height": 28, "width": 35}}, "size is 35x28; it must be square"),
        ({"size": {"height": 21, "width": 21}}, "with a multiple of 2 patches"),
        ({"size": {"height": 6, "width": 6}}, "size is 6x6"),
        ({"min_patches": 0}, "min_patches is 0"),
        ({"min_patches": 5, "max_patches": 4}, "max_patches is 4"),
        ({"max_patches": 1 << 40}, "max_patches is"),
        ({"image_std": [0.1, 0.0, 0.1]}, "image_std"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "InternVLForConditionalGeneration", settings)
    with pytest.raises(ModelFileError, match=message):
        from_folder(folder, tower_config(), is_token)


def test_rows_of_published_models() -> None:
    """448 pixels, patches of 14 and squares of 2: 256 rows a tile."""
    processor = InternVLProcessor(InternVLSettings(tile=448, patch=14, merge=2))
    assert processor.count_rows(448, 448) == 256
    assert processor.count_rows(800, 1300) == 7 * 256  # 2 x 3 tiles and the whole
    assert processor.count_rows(4000, 3000) == 13 * 256
