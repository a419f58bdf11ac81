"""The image processor of MiniCPM-V, against what its authors' code returned (tests/data/make_minicpmv_goldens.py)."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.models.towers.minicpmv import MinicpmvTowerConfig
from sporelm.vision.processors.minicpmv import MinicpmvProcessor, choose_grid, from_folder, from_metadata

DATA = Path(__file__).resolve().parents[3] / "data"
GOLDENS: dict[str, list[dict[str, Any]]] = json.loads((DATA / "minicpmv_goldens.json").read_text())


def script() -> ModuleType:
    """The script that made the goldens, for its cases."""
    spec = importlib.util.spec_from_file_location("make_minicpmv_goldens", DATA / "make_minicpmv_goldens.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE = script()


def tower_config(version: int = 3, queries: int = 3, patch: int = 7) -> MinicpmvTowerConfig:
    """A tower; only its patches and queries matter here."""
    shape: dict[str, Any] = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn": 8, "vocab": 1}
    rest: dict[str, Any] = {"context_length": 1, "eps": 1e-6, "rope_theta": 0.0, "name": "", "architecture": ""}
    sizes: dict[str, Any] = {"patch": patch, "image_size": 16 * patch, "out_width": 128}
    return MinicpmvTowerConfig(model="minicpmv", version=version, queries=queries, **sizes, **shape, **rest)


def open_settings(folder: Path, values: dict[str, Any], version: int = 3) -> MinicpmvProcessor:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return from_folder(folder, tower_config(version), None)


@pytest.mark.parametrize("name", GOLDENS)
def test_equals_the_authors_processor(name: str, tmp_path: Path) -> None:
    version, settings = MADE.CASES[name]
    processor = open_settings(tmp_path, settings, version)
    for (width, height), wanted in zip(MADE.SIZES, GOLDENS[name], strict=True):
        found = processor.process(MADE.noise(width, height))
        grids = [list(image.grids[0][1:]) for image in found.images]
        text = processor.text_in_prompt(found, 2)
        described = MADE.describe(grids, [image.patches for image in found.images], text)
        probes, expected = (each.pop("patches") for each in (described, dict(wanted)))
        np.testing.assert_allclose(probes, expected, rtol=0, atol=2e-3)
        assert described == {"grids": wanted["grids"], "text": wanted["text"]}
        assert processor.count_rows(width, height) == text.count("<unk>") == 3 * len(found.images)


def test_a_picture_of_one_pixel_fills_a_slice(tmp_path: Path) -> None:
    """The authors' code fails for a picture one pixel high, whose channels it takes for rows."""
    processor = open_settings(tmp_path, MADE.SETTINGS)
    found = processor.process(np.full((1, 1, 3), 255, np.uint8))
    assert [image.grids for image in found.images] == [((1, 8, 8),)]
    assert (found.images[0].patches == 1).all()
    assert found.text == "<image><unk><unk><unk></image>"


def test_texts_of_a_picture_in_two_slices(tmp_path: Path) -> None:
    picture, run = MADE.noise(112, 56), "<unk><unk><unk>"
    new, old = open_settings(tmp_path, MADE.SETTINGS), open_settings(tmp_path, MADE.SETTINGS, 2)
    slices = f"<slice>{run}</slice><slice>{run}</slice>"
    assert new.process(picture).text == f"<image>{run}</image>{slices}"
    nested = f"<image>{run}</image><image>{run}</image>"
    assert old.process(picture).text == f"<image>{run}</image><slice>{nested}</slice>"


@pytest.mark.parametrize(
    ("width", "height", "wanted"),
    [(448, 448, None), (896, 448, (2, 1)), (448, 900, (1, 2)), (1344, 1344, (3, 3)), (4000, 400, (9, 1))],
)
def test_grids(width: int, height: int, wanted: tuple[int, int] | None) -> None:
    assert choose_grid(width, height, 448, 9) == wanted


def test_a_picture_that_would_become_too_large(tmp_path: Path) -> None:
    processor = open_settings(tmp_path, MADE.SETTINGS | {"scale_resolution": 1 << 14})
    with pytest.raises(RequestError, match="the aspect ratio is too extreme"):
        processor.process(MADE.noise(1, 4000))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"slice_mode": False}, UnsupportedModel, "slice_mode is not supported"),
        ({"unk": "<pad>"}, UnsupportedModel, "unk is not supported"),
        ({"im_start": 3}, ModelFileError, "im_start"),
        ({"patch_size": 14}, ModelFileError, "patch_size is 14; that of the vision tower is 7"),
        ({"image_feature_size": 64}, ModelFileError, "image_feature_size is 64; that of the vision tower is 3"),
        ({"max_slice_nums": 0}, ModelFileError, "max_slice_nums is 0"),
        ({"max_slice_nums": 1 << 40}, ModelFileError, "max_slice_nums"),
        ({"scale_resolution": 6}, ModelFileError, "scale_resolution is 6"),
        ({"norm_std": [0.5, 0.0, 0.5]}, ModelFileError, "norm_std"),
        ({"norm_mean": [0.5]}, ModelFileError, "norm_mean"),
    ],
)
def test_unusable_settings(changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        open_settings(tmp_path, MADE.SETTINGS | changes)


def test_metadata_of_mmproj_files_holds_the_settings(tmp_path: Path) -> None:
    values = MADE.SETTINGS | {"use_image_id": True, "norm_mean": [0.25, 0.5, 0.75]}
    ours = open_settings(tmp_path, values)
    metadata = {key: value for key, (_, value) in ours.settings.metadata().items()}
    assert from_metadata(metadata, tower_config(), lambda text: True).settings == ours.settings
    assert not from_metadata(metadata, tower_config(), lambda text: text != "</image_id>").settings.numbers
    assert not from_metadata(metadata, tower_config(version=2), lambda text: True).settings.numbers
    with pytest.raises(ModelFileError, match="image_size"):
        from_metadata(metadata | {"clip.vision.image_size": 0}, tower_config(), lambda text: True)
