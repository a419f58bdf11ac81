"""The image processor of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, against transformers' Pillow processor."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sporelm.engine.tower_runner import MAX_ROWS
from sporelm.errors import ModelFileError, RequestError, UnsupportedModel
from sporelm.vision.processors.qwen2vl import IMAGE_PAD, QwenProcessor, fit_pixels, from_folder, from_metadata

SIZES = [(1, 1), (200, 1), (3, 211), (53, 37), (480, 640), (28, 28), (42, 14), (90, 91)]  # (width, height)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"patch_size": 16, "size": {"shortest_edge": 65536, "longest_edge": 131072}, "image_mean": [0.5] * 3},
    {"min_pixels": 4 * 28 * 28, "max_pixels": 16 * 28 * 28, "image_std": [0.5, 0.4, 0.3], "resample": 2},
    {"patch_size": 6, "merge_size": 3, "size": {"shortest_edge": 100, "longest_edge": 5000}, "rescale_factor": 0.01},
    {"patch_size": 5, "size": {"min_pixels": 200, "max_pixels": 3000}, "do_normalize": False},
]
NORMALIZATION = {"clip.vision.image_mean": [0.5, 0.5, 0.5], "clip.vision.image_std": [0.5, 0.25, 0.5]}


def tower(patch: int = 14, merge: int = 2, frames: int = 2) -> Any:
    """A tower's configuration; only its sizes matter here."""
    return SimpleNamespace(patch=patch, merge=merge, frames=frames)


def processor_of(folder: Path, values: dict[str, Any], config: Any = None) -> QwenProcessor:
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    sizes = tower(values.get("patch_size", 14), values.get("merge_size", 2))
    return from_folder(folder, config or sizes, lambda text: True)


def noise(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)


@pytest.mark.parametrize("values", SETTINGS, ids=range(len(SETTINGS)))
def test_equals_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    name = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"
    module = pytest.importorskip(
        name, reason="transformers is not installed: pip install 'sporelm[live]' compares live"
    )
    size = values.get("size", {})
    edges = {"shortest_edge": size.get("min_pixels"), "longest_edge": size.get("max_pixels")}
    theirs = module.Qwen2VLImageProcessorPil(**(values | ({"size": edges} if "min_pixels" in size else {})))
    ours = processor_of(tmp_path, values)
    for width, height in SIZES:
        pixels = noise(width, height)
        wanted = theirs.preprocess(pixels, return_tensors="np", input_data_format="channels_last")
        found = ours.process(pixels)
        (image,) = found.images
        assert image.grids == (tuple(wanted["image_grid_thw"][0].tolist()),)
        np.testing.assert_array_equal(image.patches, wanted["pixel_values"])
        merged = theirs.get_number_of_image_patches(height, width) // theirs.merge_size**2
        assert found.text == IMAGE_PAD * merged
        assert image.num_rows == ours.count_rows(width, height) == merged


def test_later_families_have_the_same_processor() -> None:
    for name in ("qwen25vl", "qwen3vl"):
        module = import_module(f"sporelm.vision.processors.{name}")
        assert (module.from_folder, module.from_metadata) == (from_folder, from_metadata)


def test_too_long_pictures_are_refused(tmp_path: Path) -> None:
    ours = processor_of(tmp_path, {})
    with pytest.raises(RequestError, match=r"got 201x1; allowed 200:1"):
        ours.process(noise(201, 1))
    with pytest.raises(RequestError, match="Crop it"):
        ours.count_rows(1, 500)


def test_large_pictures_fit_the_tower() -> None:
    """Published settings allow twice the patches that a tower takes."""
    ours = from_metadata(NORMALIZATION | {"clip.vision.image_max_pixels": 12845056}, tower(), lambda text: True)
    rows = ours.count_rows(4000, 3000)
    assert MAX_ROWS * 0.95 < rows * 4 <= MAX_ROWS
    longest = 200 * fit_pixels(1, 200, 28, 1, MAX_ROWS * 196)[0]
    assert ours.count_rows(longest, longest // 200) * 4 <= MAX_ROWS


def test_settings_survive_mmproj_files(tmp_path: Path) -> None:
    ours = processor_of(tmp_path, {"size": {"shortest_edge": 3136, "longest_edge": 50176}, "image_std": [0.5] * 3})
    metadata = {key: value for key, (_, value) in ours.settings.metadata().items()}
    assert from_metadata(metadata, tower(), lambda text: True).settings == ours.settings


def test_llama_cpp_files_have_its_bounds() -> None:
    settings = from_metadata(NORMALIZATION, tower(16), lambda text: True).settings
    assert (settings.min_pixels, settings.max_pixels) == (8 * 32**2, 4096 * 32**2)
    assert settings.std == (0.5, 0.25, 0.5)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"patch_size": 16}, ModelFileError, "patch_size is 16, but the vision tower takes 14"),
        ({"merge_size": 0}, ModelFileError, "merge_size"),
        ({"temporal_patch_size": 1}, ModelFileError, "temporal_patch_size"),
        ({"size": {"shortest_edge": -1, "longest_edge": 9}}, ModelFileError, "shortest_edge"),
        ({"max_pixels": 1e99}, ModelFileError, "max_pixels"),
        (
            {"size": "large"},
            ModelFileError,
            "size is 'large'; it must be an object with shortest_edge and longest_edge",
        ),
        ({"size": {"height": 4}}, ModelFileError, "size is .*; it must be an object with shortest_edge"),
        ({"min_pixels": 9999, "max_pixels": 999}, ModelFileError, "minimum of 9999 pixels is above the maximum of 999"),
        ({"image_std": [1, 0, 1]}, ModelFileError, "image_std"),
        ({"resample": 9}, ModelFileError, "resample"),
        ({"do_resize": False}, UnsupportedModel, "do_resize"),
    ],
)
def test_bad_settings(values: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        processor_of(tmp_path, values, tower())


@pytest.mark.parametrize(
    "metadata",
    [{}, {**NORMALIZATION, "clip.vision.image_min_pixels": "8"}, {**NORMALIZATION, "clip.vision.image_std": [1.0]}],
)
def test_bad_metadata(metadata: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"clip\.vision\.image"):
        from_metadata(metadata, tower(), lambda text: True)
