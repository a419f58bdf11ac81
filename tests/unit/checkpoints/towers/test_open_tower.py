"""Finding the vision tower of a folder, before any of it is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sporelm.checkpoints.towers.open_tower import find_image_encoder, find_tower, open_tower, tower_gguf_schema
from sporelm.errors import ModelFileError, UnsupportedModel
from tower_tiles import write_gguf_tensors


def write_folder(folder: Path, name: str, *tensors: str, **values: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({"architectures": [name], **values}))
    if tensors:
        save_file(dict.fromkeys(tensors, np.ones(3, np.float32)), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "tensor", "family"),
    [
        ("LlavaForConditionalGeneration", "vision_tower.vision_model.pre_layrnorm.weight", "llava"),
        ("LlavaForConditionalGeneration", "model.multi_modal_projector.linear_1.weight", "llava"),
        ("LlavaNextForConditionalGeneration", "image_newline", "llava_next"),
        ("Gemma3ForConditionalGeneration", "model.vision_tower.post_layernorm.weight", "gemma3"),
    ],
)
def test_a_tower_among_the_tensors(name: str, tensor: str, family: str, tmp_path: Path) -> None:
    found = find_tower(write_folder(tmp_path, name, "model.norm.weight", tensor))
    assert found is not None
    assert found.module == family


def test_a_folder_with_the_text_model_alone(tmp_path: Path) -> None:
    """As conversion of a GGUF file writes it."""
    assert find_tower(write_folder(tmp_path, "Gemma3ForConditionalGeneration", "model.norm.weight")) is None


def test_a_class_without_tensors(tmp_path: Path) -> None:
    assert find_tower(write_folder(tmp_path, "Gemma3ForConditionalGeneration")) is not None


@pytest.mark.parametrize(
    ("vision", "is_found"),
    [({"model_type": "siglip_vision_model"}, True), ({}, True), ("x", True), ({"model_type": "pixtral"}, False)],
)
def test_kinds_of_towers(vision: Any, is_found: bool, tmp_path: Path) -> None:
    """LLaVA's class also holds Pixtral: its text model runs alone."""
    folder = write_folder(tmp_path, "LlavaForConditionalGeneration", "vision_tower.x", vision_config=vision)
    assert (find_tower(folder) is not None) == is_found
    if not is_found:
        with pytest.raises(UnsupportedModel, match=r"model_type is not supported \(got 'pixtral'"):
            open_tower(folder)


def test_other_classes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "LlamaForCausalLM", "vision_tower.x")
    assert find_tower(folder) is None
    assert find_image_encoder(folder) is None
    with pytest.raises(UnsupportedModel, match=r"its vision tower is not supported .got .*LlamaForCausalLM.*SigLIP"):
        open_tower(folder)
    assert find_image_encoder(write_folder(tmp_path, "SiglipModel")) is not None


@pytest.mark.parametrize("encoder", ["clip", "siglip"])
def test_image_encoders_have_no_mmproj_file(encoder: str) -> None:
    assert tower_gguf_schema("llava")
    with pytest.raises(UnsupportedModel, match=r"an image encoder has no mmproj file.*Use its folder"):
        tower_gguf_schema(encoder)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({}, UnsupportedModel, "not an mmproj file"),
        ({"general.architecture": ("str", "clip")}, UnsupportedModel, "projector_type is not supported .got None"),
        (
            {"general.architecture": ("str", "clip"), "clip.projector_type": ("str", "ldp")},
            UnsupportedModel,
            "got 'ldp'; allowed mlp, ",
        ),
        (
            {"general.architecture": ("str", "clip"), "clip.vision.projector_type": ("str", "gemma3")},
            ModelFileError,
            "patch_size is missing",
        ),
    ],
)
def test_other_files(metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    path = write_gguf_tensors(tmp_path / "m.gguf", metadata, {"x": np.ones((2, 2))})
    with pytest.raises(error, match=message):
        open_tower(path)
