"""The image processor of LLaVA 1.5, against transformers' Pillow processors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clip_towers import NEEDS_TRANSFORMERS, SIZES, any_token, noise, tower_config, write_settings
from sporelm.errors import ModelError
from sporelm.models.towers.llava import LlavaTowerConfig
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.llava import LlavaProcessor, from_folder, from_metadata

SIZE = 42
SQUARE = {"height": SIZE, "width": SIZE}
SETTINGS: list[dict[str, Any]] = [
    {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": SIZE}, "crop_size": SQUARE},
    {
        "image_processor_type": "CLIPImageProcessor",
        "size": 50,
        "crop_size": SIZE,
        "resample": 2,
        "image_std": [1, 2, 3],
    },
    {"image_processor_type": "CLIPImageProcessor", "size": SQUARE, "do_center_crop": False, "do_normalize": False},
    {
        "image_processor_type": "LlavaImageProcessor",
        "size": {"shortest_edge": SIZE},
        "crop_size": SQUARE,
        "do_pad": True,
        "image_mean": [0.4, 0.5, 0.6],
    },
    {"image_processor_type": "SiglipImageProcessor", "size": SQUARE, "rescale_factor": 0.01},
    {"image_processor_type": "SiglipImageProcessor", "size": SQUARE, "do_rescale": False},
]


def config_of(values: dict[str, Any], **fields: Any) -> LlavaTowerConfig:
    is_clip = "Siglip" not in values["image_processor_type"]
    fields = {"features": (1,), "has_class_row": is_clip, "drops_first_row": is_clip, **fields}
    return tower_config(LlavaTowerConfig, SIZE, **fields)


def theirs_of(values: dict[str, Any]) -> Any:
    pytest.importorskip("transformers", reason=NEEDS_TRANSFORMERS)
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    kinds = {"CLIP": CLIPImageProcessorPil, "Llava": LlavaImageProcessorPil, "Siglip": SiglipImageProcessorPil}
    kind = kinds[values["image_processor_type"].removesuffix("ImageProcessor")]
    return kind(**{key: value for key, value in values.items() if key != "image_processor_type"})


@pytest.mark.parametrize("values", SETTINGS, ids=range(len(SETTINGS)))
def test_equals_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    theirs, config = theirs_of(values), config_of(values)
    ours = from_folder(write_settings(tmp_path, values), config, any_token)
    for width, height in SIZES:
        picture = noise(width, height)
        pixels = np.asarray(theirs.preprocess([picture], input_data_format="channels_last")["pixel_values"][0])
        text, (image,) = ours.process(picture)
        assert np.array_equal(image.patches, cut_patches(pixels, config.patch)), (width, height)
        assert image.grids == ((1, 3, 3),)
        assert (image.num_rows, text) == (9, "<image>" * 9)
        assert ours.count_rows(width, height) == 9


@pytest.mark.parametrize(("strategy", "more"), [("default", 1), ("full", 1), ("full", 0)])
def test_counts_rows_as_transformers(strategy: str, more: int) -> None:
    pytest.importorskip("transformers", reason=NEEDS_TRANSFORMERS)
    from transformers.models.llava.processing_llava import LlavaProcessor as Theirs

    theirs = SimpleNamespace(
        patch_size=14, num_additional_image_tokens=more, vision_feature_select_strategy=strategy, image_token="<image>"
    )
    wanted = Theirs.replace_image_token(theirs, {"pixel_values": [np.zeros((3, SIZE, SIZE))]}, 0)  # type: ignore[arg-type]
    config = config_of(SETTINGS[0], drops_first_row=strategy == "default", has_class_row=bool(more))
    ours = LlavaProcessor(from_metadata(METADATA, config, any_token).settings, config)
    assert ours.process(noise(5, 7)).text == wanted


def test_token_of_the_tokenizer(tmp_path: Path) -> None:
    write_settings(tmp_path, SETTINGS[0], image_token="[IMG]")
    assert from_folder(tmp_path, config_of(SETTINGS[0]), any_token).row_token == "[IMG]"
    (tmp_path / "tokenizer_config.json").write_text('{"image_token": {"content": "<|pic|>"}}')
    ours = from_folder(tmp_path, config_of(SETTINGS[0]), any_token)
    assert (ours.row_token, ours.placeholder, ours.prompt_text) == ("<|pic|>", "<|pic|>", "<|pic|>\n")


METADATA: dict[str, Any] = {
    "clip.vision.image_mean": np.array([0.4, 0.5, 0.6], np.float32),
    "clip.vision.image_std": [0.5, 0.25, 0.125],
}


def test_mmproj_files_pad_with_the_mean_color() -> None:
    """A wide picture of one color lies in the middle of the color that mtmd has."""
    config = config_of(SETTINGS[0])
    ours = from_metadata(METADATA, config, any_token)
    picture = np.full((20, 60, 3), 255, np.uint8)
    resized = ours.settings.resize(picture)
    assert resized.shape == (SIZE, SIZE, 3)
    assert (resized[14:28] == 255).all()
    assert (resized[[0, 13, 28, 41]] == [122, 116, 104]).all()
    (image,) = ours.process(picture).images
    mean, std = np.float32(METADATA["clip.vision.image_mean"]), np.float32(METADATA["clip.vision.image_std"])
    color = (np.float32(255 / 255) - mean) / std
    np.testing.assert_array_equal(image.patches[4].reshape(3, -1).T, np.tile(color, (196, 1)))


def test_metadata_is_that_of_the_file() -> None:
    ours = from_metadata(METADATA, config_of(SETTINGS[0]), any_token)
    written = {key: value for key, (_, value) in ours.to_metadata().items()}
    assert from_metadata(written, ours.config, any_token).settings == ours.settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"crop_size": 41}, "makes pictures of 41x41 pixels, but the vision tower takes 42x42"),
        ({"do_center_crop": False}, "makes pictures of different sizes, but the vision tower takes 42x42"),
        ({"do_resize": False}, "do_resize is not supported"),
        ({"resample": 6}, "resample is 6"),
        ({"size": {"shortest_edge": 0}}, "shortest_edge is 0"),
        ({"size": {"height": 5}}, "width is missing"),
        ({"size": "large"}, "height is missing"),
        ({"image_mean": [1, 2]}, "image_mean is 2 values"),
        ({"image_std": [1, 0, 1]}, "image_std is 0"),
        ({"rescale_factor": "a"}, "rescale_factor is 'a'"),
        ({"do_center_crop": 3}, "do_center_crop is 3"),
    ],
)
def test_rejects_impossible_settings(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_settings(tmp_path, SETTINGS[0] | values)
    with pytest.raises(ModelError, match=message):
        from_folder(folder, config_of(SETTINGS[0]), any_token)


def test_an_error_of_a_folder_without_settings_names_the_missing_file(tmp_path: Path) -> None:
    (tmp_path / "processor_config.json").write_text("{}")
    reason = r"/preprocessor_config\.json \(missing, so defaults apply\): the processor makes pictures of 224x224"
    with pytest.raises(ModelError, match=reason):
        from_folder(tmp_path, config_of(SETTINGS[0]), any_token)


@pytest.mark.parametrize("name", ["image_mean", "image_std"])
@pytest.mark.parametrize("value", [None, [1.0], [0.5, float("nan"), 0.5], "x", [[1, 2, 3]] * 3])
def test_rejects_impossible_metadata(name: str, value: Any) -> None:
    metadata = METADATA | {f"clip.vision.{name}": value}
    if value is None:
        del metadata[f"clip.vision.{name}"]
    with pytest.raises(ModelError, match=name):
        from_metadata(metadata, config_of(SETTINGS[0]), any_token)
