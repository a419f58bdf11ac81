"""The image processor of Idefics3 and SmolVLM, against transformers' Pillow processors."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.vit_tower import VitConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.idefics3 import Idefics3Processor, count_tiles, from_folder, from_metadata

SIZES = [(1, 1), (300, 1), (2, 211), (37, 53), (120, 80), (19, 20), (64, 64)]  # (width, height)
SETTINGS: list[dict[str, Any]] = [
    {"size": {"longest_edge": 80}, "max_image_size": {"longest_edge": 20}},
    {
        "size": {"longest_edge": 61},
        "max_image_size": {"longest_edge": 24},
        "resample": 2,
        "image_mean": [0.4, 0.5, 0.6],
    },
    {"size": {"longest_edge": 20}, "max_image_size": {"longest_edge": 20}},
    {"size": {"longest_edge": 5000}, "max_image_size": {"longest_edge": 1404}, "rescale_factor": 0.01},
    {"size": {"longest_edge": 47}, "max_image_size": {"longest_edge": 22}, "do_image_splitting": False},
]


def tower_config(tile: int, patch: int = 5, merge: int = 2) -> VitConfig:
    """A tower for tiles of this size; only its sizes matter here."""
    shape: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "vocab": 1}
    rest: dict[str, Any] = {"context_length": 1, "eps": 1e-6, "rope_theta": 0.0, "name": "", "architecture": ""}
    return VitConfig(model="idefics3", patch=patch, merge=merge, image_size=tile, out_width=8, **shape, **rest)


def write_settings(folder: Path, values: dict[str, Any], **processor: Any) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


def patch_of(tile: int) -> int:
    """A patch that fits an even number of times on a side of the tile; some pixels may be left over."""
    return max(1, tile // 4)


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("values", SETTINGS, ids=lambda values: str(values["size"]["longest_edge"]))
@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_equals_transformers(values: dict[str, Any], family: str, tmp_path: Path) -> None:
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'sporelm[live]' compares live"
    )
    name = {"idefics3": "Idefics3", "smolvlm": "SmolVLM"}[family]
    module = import_module(f"transformers.models.{family}.image_processing_pil_{family}")
    theirs = getattr(module, f"{name}ImageProcessorPil")(**values, do_convert_rgb=True)
    tile = values["max_image_size"]["longest_edge"]
    patch = patch_of(tile)
    ours = from_folder(write_settings(tmp_path, values), tower_config(tile, patch), None)
    size = tile // patch * patch
    for width, height in SIZES if tile < 1000 else SIZES[1:3]:
        pixels = noise(width, height)
        wanted = theirs.preprocess(
            pixels, return_row_col_info=True, return_tensors="np", input_data_format="channels_last"
        )
        assert wanted["pixel_attention_mask"].all()
        found = ours.process(pixels)
        tiles = wanted["pixel_values"][0].astype(np.float32)
        assert len(found.images) == len(tiles)
        for image, each in zip(found.images, tiles, strict=True):
            np.testing.assert_array_equal(image.patches, cut_patches(each[:, :size, :size], patch))
            assert image.num_rows == 4
        rows, columns = wanted["rows"][0][0], wanted["cols"][0][0]
        assert found.text == their_text(family, rows, columns, found.images[0].num_rows)
        assert (
            ours.count_rows(width, height) == found.text.count("<image>") == sum(each.num_rows for each in found.images)
        )


def their_text(family: str, rows: int, columns: int, num_rows: int) -> str:
    """The text that transformers puts in place of "<image>"."""
    if family == "smolvlm":
        from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

        tags = ("<fake_token_around_image>", "<image>", "<global-img>")
        return str(get_image_prompt_string(rows, columns, num_rows, *tags))
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor as Theirs

    processor: Any = SimpleNamespace(
        image_seq_len=num_rows,
        fake_image_token="<fake_token_around_image>",
        image_token="<image>",
        global_image_tag="<global-img>",
    )
    return str(Theirs.replace_image_token(processor, {"rows": [[rows]], "cols": [[columns]]}, 0))


@pytest.mark.parametrize(
    ("height", "width", "tile", "wanted"),
    [(1, 1, 20, (1, 1)), (2048, 2048, 512, (4, 4)), (1536, 2048, 512, (3, 4)), (2, 1456, 364, (1, 4))],
)
def test_tiles_cover_a_picture(height: int, width: int, tile: int, wanted: tuple[int, int]) -> None:
    assert count_tiles(height, width, tile) == wanted


def test_text_of_a_picture_in_two_tiles(tmp_path: Path) -> None:
    values = {"size": {"longest_edge": 40}, "max_image_size": {"longest_edge": 20}}
    found = from_folder(write_settings(tmp_path, values), tower_config(20, patch=10), None).process(noise(40, 20))
    fake = "<fake_token_around_image>"
    assert found.text == f"{fake}<row_1_col_1><image>{fake}<row_1_col_2><image>\n\n{fake}<global-img><image>{fake}"
    assert [image.grids for image in found.images] == [((1, 2, 2),)] * 3


def test_settings_of_a_new_folder_lie_in_one_file(tmp_path: Path) -> None:
    inner = {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 20}}
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner, "image_seq_len": 4}))
    assert from_folder(tmp_path, tower_config(20), None).settings.longest_edge == 60


@pytest.mark.parametrize(
    ("values", "processor", "error", "message"),
    [
        ({"size": {"height": 20, "width": 20}}, {}, UnsupportedModel, "size is not supported"),
        ({"size": {"longest_edge": 0}}, {}, ModelFileError, "size: longest_edge is 0"),
        ({"size": {"longest_edge": 1 << 20}}, {}, ModelFileError, "longest_edge"),
        ({"max_image_size": {"longest_edge": 19}}, {}, ModelFileError, "tiles of 19 pixels hold 3 patches"),
        ({"max_image_size": {"longest_edge": 4}}, {}, ModelFileError, "tiles of 4 pixels hold 0 patches"),
        ({"do_resize": False}, {}, UnsupportedModel, "do_resize"),
        ({"resample": 9}, {}, ModelFileError, "resample"),
        ({}, {"image_seq_len": 169}, ModelFileError, "image_seq_len is 169; the vision tower returns 4 rows"),
    ],
)
def test_unusable_settings(
    values: dict[str, Any], processor: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    values = {"max_image_size": {"longest_edge": 20}, **values}
    with pytest.raises(error, match=message):
        from_folder(write_settings(tmp_path, values, **processor), tower_config(20), None)


def test_metadata_of_mmproj_files_holds_the_settings(tmp_path: Path) -> None:
    values = {"size": {"longest_edge": 60}, "max_image_size": {"longest_edge": 20}, "image_std": [0.25, 0.5, 0.75]}
    ours = from_folder(write_settings(tmp_path, values), tower_config(20), None)
    metadata = {key: value for key, (_, value) in ours.settings.metadata().items()}
    again = from_metadata(metadata, tower_config(20), None)
    assert isinstance(again, Idefics3Processor)
    assert again.settings == ours.settings
    with pytest.raises(ModelFileError, match=r"clip\.vision\.image_mean"):
        from_metadata({}, tower_config(20), None)
    with pytest.raises(ModelFileError, match="preproc_image_size"):
        from_metadata({**metadata, "clip.vision.preproc_image_size": -1}, tower_config(20), None)
