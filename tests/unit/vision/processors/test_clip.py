"""The image processors of CLIP and SigLIP as image encoders, against transformers' Pillow processors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clip_towers import NEEDS_TRANSFORMERS, SIZES, any_token, noise, tower_config, write_settings
from sporelm.models.vit_tower import VitConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors import clip, siglip

CASES: list[tuple[str, dict[str, Any]]] = [
    ("clip", {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}}),
    ("clip", {"size": 60, "crop_size": 42, "resample": 2, "image_mean": [0.1, 0.2, 0.3], "do_rescale": False}),
    ("siglip", {"size": {"height": 42, "width": 42}}),
    ("siglip", {"size": {"height": 42, "width": 42}, "resample": 2, "image_std": [0.1, 0.2, 0.3]}),
]


@pytest.mark.parametrize(("family", "values"), CASES, ids=range(len(CASES)))
def test_equals_transformers(family: str, values: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=NEEDS_TRANSFORMERS)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    theirs = (CLIPImageProcessorPil if family == "clip" else SiglipImageProcessorPil)(**values)
    read = clip.from_folder if family == "clip" else siglip.from_folder
    config = tower_config(VitConfig, 42, patch=12)  # some pixels lie past the last patch
    ours = read(write_settings(tmp_path, values), config, any_token)
    for width, height in SIZES:
        picture = noise(width, height)
        pixels = np.asarray(theirs.preprocess([picture], input_data_format="channels_last")["pixel_values"][0])
        text, (image,) = ours.process(picture)
        assert np.array_equal(image.patches, cut_patches(pixels[:, :36, :36], 12)), (width, height)
        assert (image.grids, image.num_rows, text, ours.count_rows(width, height)) == (((1, 3, 3),), 1, "", 1)
