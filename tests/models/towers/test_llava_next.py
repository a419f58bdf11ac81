"""LLaVA-NeXT against transformers, from folders and from mmproj files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import BACKENDS
from clip_towers import any_token
from close import assert_close
from llava_models import (
    CLIP,
    LLAMA,
    MISSING,
    ODD_VIT,
    SIGLIP,
    VIT,
    Tiny,
    model_of,
    their_logits,
    their_tokenizer,
    write_tiny,
)
from mmproj_files import compute_rows, open_tower_config, write_mmproj
from sporelm import LLM
from sporelm.checkpoints.towers.open_tower import open_tower
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.models.towers.llava import LlavaTowerConfig
from sporelm.models.towers.llava_next import LlavaNextConfig
from sporelm.vision.processors.llava_next import from_folder, from_metadata
from tower_tiles import write_gguf_tensors
from vision_folders import draw_picture, token_ids

TOKENS = {"image_token": "<image>"}
ID = token_ids(tuple(TOKENS.values()))["<image>"]
PINPOINTS = [[42, 84], [84, 42], [84, 84], [126, 42], [42, 126]]
ODD_PINPOINTS = [[40, 80], [80, 40], [40, 160], [160, 40]]
GRANITE = LLAMA | {"model_type": "granite", "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
GRANITE |= {"attention_multiplier": 0.1, "logits_scaling": 1.0}  # transformers' class leaves the latter out
MODELS = [
    Tiny(
        "clip",
        "LlavaNext",
        TOKENS,
        CLIP | VIT | {"image_size": 42, "patch_size": 14},
        LLAMA | {"model_type": "mistral"},
        {"image_token_id": ID, "image_grid_pinpoints": PINPOINTS},
        {"size": {"shortest_edge": 42}, "crop_size": {"height": 42, "width": 42}, "image_grid_pinpoints": PINPOINTS},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    Tiny(
        "siglip, several layers, granite",
        "LlavaNext",
        TOKENS,
        SIGLIP | ODD_VIT | {"image_size": 40, "patch_size": 8},
        GRANITE,
        {"image_token_id": ID, "vision_feature_layer": [-3, 1, -1], "vision_feature_select_strategy": "full"}
        | {"image_grid_pinpoints": ODD_PINPOINTS},
        {"size": {"height": 40, "width": 40}, "crop_size": {"height": 40, "width": 40}, "image_mean": [0.5, 0.5, 0.5]}
        | {"image_std": [0.5, 0.5, 0.5], "image_grid_pinpoints": ODD_PINPOINTS},
        {"patch_size": 8, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
    ),
]
PROMPTS: list[tuple[str, list[tuple[int, int]]]] = [
    ("<image>ab", [(1, 1)]),
    ("a<image>", [(200, 3)]),
    ("<image>", [(2, 90)]),
    ("<image>a\n<image>bc<image>", [(50, 30), (42, 42), (16, 9)]),
    ("ab<image>\n<image>c", [(90, 91), (1, 7)]),
]
FolderOf = Callable[[Tiny], Path]


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=MISSING)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Writes a model with its processor, once."""
    written: dict[str, Path] = {}

    def write(tiny: Tiny) -> Path:
        if tiny.name not in written:
            written[tiny.name] = write_tiny(tiny, tmp_path_factory.mktemp("next"), "<image>")
        return written[tiny.name]

    return write


def their_processor(tiny: Tiny, folder: Path) -> Any:
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor

    images = LlavaNextImageProcessorPil(**tiny.settings)
    return LlavaNextProcessor(images, their_tokenizer(tiny, folder), **tiny.processor)


def their_rows(tiny: Tiny, folder: Path, picture: np.ndarray) -> np.ndarray:
    import torch

    found = their_processor(tiny, folder).image_processor(
        [picture], return_tensors="pt", input_data_format="channels_last"
    )
    with torch.no_grad():
        (rows,) = model_of(tiny).get_image_features(**found).pooler_output
    return np.asarray(rows)


@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.name)
def test_logits_are_those_of_transformers(tiny: Tiny, folder_of: FolderOf) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last."""
    folder = folder_of(tiny)
    processor = their_processor(tiny, folder)
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = [draw_picture(*size, seed=number) for number, size in enumerate(sizes)]
            wanted = their_logits(tiny, processor, text, pictures)
            found = llm.logits(llm.prompt_with_images(text, pictures))
            assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_those_of_transformers(backend: str, eager: bool, folder_of: FolderOf) -> None:
    tiny, folder = MODELS[1], folder_of(MODELS[1])
    picture = draw_picture(75, 30)
    wanted = their_rows(tiny, folder, picture)
    images = from_folder(folder, open_tower_config(folder), any_token).process(picture).images
    found = compute_rows(folder, images, backend, eager=eager)
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


def test_rows_do_not_depend_on_pieces(folder_of: FolderOf) -> None:
    folder = folder_of(MODELS[0])
    images = from_folder(folder, open_tower_config(folder), any_token).process(draw_picture(80, 70)).images
    whole = compute_rows(folder, images, "cpu", eager=False)
    assert_close(compute_rows(folder, images, "cpu", eager=False, piece=4), whole, "exact")


def write_ours(folder: Path, path: Path) -> Path:
    config = open_tower_config(folder)
    return write_mmproj(folder, path, from_folder(folder, config, any_token).to_metadata())


def test_mmproj_of_ours(folder_of: FolderOf, tmp_path: Path) -> None:
    """The file gives the same rows and has the names and keys of llama.cpp's converter."""
    folder = folder_of(MODELS[0])
    path = write_ours(folder, tmp_path / "mmproj.gguf")
    assert replace(open_tower_config(path), eps=1e-5) == open_tower_config(folder)
    file = open_gguf(path)
    assert file.metadata["clip.projector_type"] == "mlp"
    assert list(file.metadata["clip.vision.image_grid_pinpoints"]) == [side for pair in PINPOINTS for side in pair]
    assert file.metadata["clip.vision.mm_patch_merge_type"] == "spatial_unpad"
    assert list(file.metadata["clip.vision.feature_layer"]) == [2]
    assert {"mm.0.weight", "mm.2.bias", "v.image_newline", "v.class_embd", "v.pre_ln.weight"} <= set(file.tensors)
    processors = (
        from_folder(folder, open_tower_config(folder), any_token),
        from_metadata(file.metadata, open_tower_config(path), any_token),
    )
    file.close()
    wanted, found = (each.process(draw_picture(75, 30)) for each in processors)
    assert wanted.text == found.text
    rows = [compute_rows(place, each.images) for place, each in ((folder, wanted), (path, found))]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-5 * np.ptp(rows[0]))  # means in float32


def changed_file(source: Path, path: Path, metadata: dict[str, Any], dropped: str = "", renamed: str = "") -> Path:
    """A copy of a GGUF file with other metadata, (type, value) or None; without a tensor, or with one renamed."""
    file = open_gguf(source)
    kept: dict[str, Any] = {name: (file.kinds[name], each) for name, each in file.metadata.items()} | metadata
    tensors = {name: file.tensor(name).dequantize() for name in file.tensors if name != dropped}
    file.close()
    if renamed:
        tensors[renamed] = tensors.pop("v.image_newline")
    return write_gguf_tensors(path, {key: each for key, each in kept.items() if each is not None}, tensors)


def test_older_name_of_the_newline(folder_of: FolderOf, tmp_path: Path) -> None:
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    older = changed_file(whole, tmp_path / "older.gguf", {}, renamed="model.image_newline")
    images = from_folder(folder_of(MODELS[0]), open_tower_config(whole), any_token).process(draw_picture(9, 70)).images
    assert_close(compute_rows(older, images), compute_rows(whole, images), "exact")


def test_file_without_spatial_unpad(folder_of: FolderOf, tmp_path: Path) -> None:
    """All rows of all tiles, one tile after the other."""
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    merge_type: dict[str, Any] = {"clip.vision.mm_patch_merge_type": None}
    flat = changed_file(whole, tmp_path / "flat.gguf", merge_type, dropped="v.image_newline")
    config = open_tower_config(flat)
    assert isinstance(config, LlavaNextConfig)
    assert not config.has_newline
    file = open_gguf(flat)
    (image,) = from_metadata(file.metadata, config, any_token).process(draw_picture(84, 42)).images
    file.close()
    rows = compute_rows(flat, [image])
    assert len(rows) == image.num_rows == 27
    whole_rows = compute_rows(whole, [replace(image, layout=(1, 2, 0, 0, 3, 6), num_rows=9 + 3 * 7)])
    assert_close(whole_rows[:9], rows[:9], "exact")
    lines = whole_rows[9:].reshape(3, 7, -1)[:, :6].reshape(3, 2, 3, -1).swapaxes(0, 1)
    assert_close(lines.reshape(18, -1), rows[9:], "exact")


def test_file_without_sizes_is_that_of_llava(folder_of: FolderOf, tmp_path: Path) -> None:
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    without: dict[str, Any] = {"clip.vision.image_grid_pinpoints": None}
    plain = changed_file(whole, tmp_path / "plain.gguf", without, dropped="v.image_newline")
    config = open_tower_config(plain)
    assert config.model == "llava"
    assert isinstance(config, LlavaTowerConfig)


@pytest.mark.parametrize(
    ("changes", "dropped", "message"),
    [
        ({"clip.vision.image_grid_pinpoints": ("[i32]", [42])}, "", "has 1 numbers; it must be pairs"),
        ({"clip.vision.image_grid_pinpoints": ("[i32]", [42, 43])}, "", "multiples of 42"),
        ({"clip.vision.image_grid_pinpoints": ("[i32]", [-42, 42])}, "", r"image_grid_pinpoints has \[-42, 42\]"),
        ({"clip.vision.image_grid_pinpoints": ("[f32]", [42.0, 42.0])}, "", r"image_grid_pinpoints has \[42.0, 42.0\]"),
        ({"clip.vision.image_grid_pinpoints": ("str", "42")}, "", "image_grid_pinpoints"),
        ({"clip.vision.image_grid_pinpoints": ("u32", 42)}, "", "has 1 numbers; it must be pairs"),
        ({"clip.vision.image_grid_pinpoints": ("[i32]", [420, 420])}, "", "of at most 64 tiles"),
        ({"clip.vision.image_grid_pinpoints": ("[i32]", [42, 42] * 257)}, "", "it must be a list"),
        ({"clip.vision.mm_patch_merge_type": ("u32", 3)}, "", "mm_patch_merge_type is 3"),
        ({}, "v.image_newline", "image_newline"),
    ],
)
def test_hostile_files(
    changes: dict[str, Any], dropped: str, message: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    changed = changed_file(whole, tmp_path / "changed.gguf", changes, dropped)
    images = from_folder(folder_of(MODELS[0]), open_tower_config(whole), any_token).process(draw_picture(9, 70)).images
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        compute_rows(changed, images)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_grid_pinpoints": [[42, 41]]}, "multiples of 42"),
        ({"image_grid_pinpoints": "all"}, "image_grid_pinpoints is 'all'"),
        ({"vision_feature_select_strategy": "full"}, "not supported for this tower"),
    ],
)
def test_unusable_folders(changes: dict[str, Any], message: str, folder_of: FolderOf, tmp_path: Path) -> None:
    values = json.loads((folder_of(MODELS[0]) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    (tmp_path / "model.safetensors").symlink_to(folder_of(MODELS[0]) / "model.safetensors")
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(tmp_path)
