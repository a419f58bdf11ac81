"""The image processor of CogVLM, against the transform of the authors' code: Pillow's resizing and CLIP's numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sporelm.errors import ModelFileError
from sporelm.models.towers.cogvlm import CogVLMTowerConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.cogvlm import CogVLMProcessor, CogVLMSettings, from_folder, from_metadata

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def tower_config(**more: Any) -> CogVLMTowerConfig:
    """A tower for pictures of 45 pixels, whose patches of 7 leave some over; only its sizes matter here."""
    shape: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "vocab": 1}
    rest: dict[str, Any] = {"context_length": 1, "eps": 1e-6, "rope_theta": 0.0, "name": "", "architecture": ""}
    size: dict[str, Any] = {"patch": 7, "merge": 2, "image_size": 45, "grid_side": 6, "out_width": 8}
    return CogVLMTowerConfig(model="cogvlm", projector_ffn=8, **{**size, **shape, **rest, **more})


def is_token(text: str) -> bool:
    return False


@pytest.mark.parametrize("merge", [1, 2])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (900, 2), (37, 53), (120, 80), (45, 45)])
def test_pixels_are_those_of_the_authors(width: int, height: int, merge: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), np.uint8)
    resized = Image.fromarray(pixels).resize((45, 45), Image.Resampling.BICUBIC)
    normal = (np.asarray(resized, np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    wanted = cut_patches(normal.transpose(2, 0, 1)[:, :42, :42], 7)
    processor = from_folder(tmp_path, tower_config(merge=merge), is_token)
    found = processor.process(pixels)
    (image,) = found.images
    assert np.abs(image.patches - wanted).max() < 1e-6
    count = 2 + (6 // merge) ** 2
    assert (image.num_rows, processor.count_rows(width, height), image.grids) == (count, count, ((1, 6, 6),))
    assert found.text == "<IMAGE_TOKEN>" * count


def test_mmproj_files_have_the_settings() -> None:
    metadata = {"clip.vision.image_mean": [0.5, 0.4, 0.3], "clip.vision.image_std": np.array([0.2, 0.3, 0.4])}
    settings = from_metadata(metadata, tower_config(), is_token).settings
    assert (settings.mean, settings.std, settings.size) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4), 45)
    with pytest.raises(ModelFileError, match="image_std"):
        from_metadata({"clip.vision.image_mean": [0.5, 0.4, 0.3]}, tower_config(), is_token)


def test_rows_of_published_models() -> None:
    assert CogVLMProcessor(CogVLMSettings(490, 14, 1)).count_rows(1, 1) == 1227
    assert CogVLMProcessor(CogVLMSettings(1344, 14, 2)).count_rows(1, 1) == 2306
