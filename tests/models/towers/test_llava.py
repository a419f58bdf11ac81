"""LLaVA 1.5 against transformers, from folders and from mmproj files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import BACKENDS
from clip_towers import any_token
from close import assert_close
from llava_models import (
    CLIP,
    LLAMA,
    MISSING,
    ODD_VIT,
    QWEN,
    SIGLIP,
    VIT,
    Tiny,
    draw_pixels,
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
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.llava import LlavaTowerConfig
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.processors.llava import from_folder
from tower_tiles import copy_without, tiles_as_image, write_gguf_tensors
from vision_folders import draw_picture, token_ids

TOKENS = {"image_token": "<image>"}
ID = token_ids(tuple(TOKENS.values()))["<image>"]
MODELS = [
    Tiny(
        "clip",
        "Llava",
        TOKENS,
        CLIP | VIT | {"image_size": 42, "patch_size": 14},
        LLAMA,
        {"image_token_id": ID},
        {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 42}, "crop_size": 42},
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
    ),
    Tiny(
        "siglip, several layers",
        "Llava",
        TOKENS,
        SIGLIP | ODD_VIT | {"image_size": 40, "patch_size": 11, "hidden_act": "gelu"},
        QWEN,
        {"image_token_id": ID, "vision_feature_layer": [-1, 2, 2], "vision_feature_select_strategy": "full"}
        | {"projector_hidden_act": "gelu_pytorch_tanh", "multimodal_projector_bias": False},
        {"image_processor_type": "SiglipImageProcessor", "size": {"height": 40, "width": 40}, "resample": 2},
        {"patch_size": 11, "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0},
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
            written[tiny.name] = write_tiny(tiny, tmp_path_factory.mktemp("llava"), "<image>")
        return written[tiny.name]

    return write


def their_processor(tiny: Tiny, folder: Path) -> Any:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    settings = {key: value for key, value in tiny.settings.items() if key != "image_processor_type"}
    kind = SiglipImageProcessorPil if tiny.vision["model_type"].startswith("siglip") else CLIPImageProcessorPil
    return LlavaProcessor(kind(**settings), their_tokenizer(tiny, folder), **tiny.processor)


def their_rows(tiny: Tiny, pixels: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        found = model_of(tiny).get_image_features(pixel_values=torch.from_numpy(pixels)).pooler_output
    return np.concatenate([np.asarray(each) for each in found])


def as_image(tiny: Tiny, pixels: np.ndarray) -> ImageInput:
    side = tiny.side * tiny.vision["patch_size"]
    return tiles_as_image(pixels[:, :, :side, :side], tiny.vision["patch_size"], len(pixels) * tiny.side**2)


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
@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.name)
def test_rows_are_those_of_transformers(tiny: Tiny, backend: str, eager: bool, folder_of: FolderOf) -> None:
    pixels = draw_pixels(tiny, 3)
    wanted = their_rows(tiny, pixels)
    found = compute_rows(folder_of(tiny), [as_image(tiny, pixels)], backend, eager=eager)
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.name)
def test_rows_do_not_depend_on_pieces(tiny: Tiny, folder_of: FolderOf) -> None:
    pixels = draw_pixels(tiny, 4)
    whole = compute_rows(folder_of(tiny), [as_image(tiny, pixels)], "cpu", eager=False)
    alone = compute_rows(folder_of(tiny), [as_image(tiny, each[None]) for each in pixels], "cpu", eager=False, piece=4)
    assert_close(alone, whole, "exact")


@pytest.mark.parametrize(
    ("layer", "strategy", "tower"),
    [(-1, "default", CLIP), (1, "full", CLIP), ([-2, 1], "default", CLIP), (-1, "default", SIGLIP)],
    ids=str,
)
def test_other_features(layer: Any, strategy: str, tower: dict[str, Any], tmp_path: Path) -> None:
    """Any layer, and with the class embedding's row; transformers leaves out SigLIP's first patch in its place."""
    tiny = MODELS[0]._replace(
        name=f"{layer} {strategy} {tower['model_type']}",
        vision=tower | VIT | {"image_size": 42, "patch_size": 14},
        outer={"image_token_id": ID, "vision_feature_layer": layer, "vision_feature_select_strategy": strategy},
    )
    folder = write_tiny(tiny, tmp_path, "<image>")
    pixels = draw_pixels(tiny, 2)
    wanted = their_rows(tiny, pixels)
    config = open_tower_config(folder)
    assert isinstance(config, LlavaTowerConfig)
    assert len(wanted) == 2 * config.kept_rows
    found = compute_rows(folder, [as_image(tiny, pixels)])
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vision_tower.", "vision_tower.vision_model."),
        ("vision_tower.", "model.vision_tower.vision_model."),
        ("vision_tower.", "model.vision_tower."),
        ("multi_modal_projector.", "model.multi_modal_projector."),
    ],
)
def test_names_of_other_folders(old: str, new: str, folder_of: FolderOf, tmp_path: Path) -> None:
    tiny = MODELS[0]
    tensors = load_file(folder_of(tiny) / "model.safetensors")
    renamed = {name.replace(old, new, 1) if name.startswith(old) else name: each for name, each in tensors.items()}
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder_of(tiny) / "config.json").read_text())
    image = as_image(tiny, draw_pixels(tiny, 1))
    assert_close(compute_rows(tmp_path, [image]), compute_rows(folder_of(tiny), [image]), "exact")


# Names in mmproj files, as get_tensor_name of llama.cpp's convert_image_encoder_to_gguf.py makes them.
RENAMED = (
    ("vision_tower.", "v."),
    ("multi_modal_projector.linear_1", "mm.0"),
    ("multi_modal_projector.linear_2", "mm.2"),
    ("encoder.layers", "blk"),
    ("embeddings.", ""),
    ("_proj.", "."),
    ("self_attn.", "attn_"),
    ("layer_norm", "ln"),
    ("mlp.fc1", "ffn_down"),
    ("mlp.fc2", "ffn_up"),
    ("embedding", "embd"),
    ("pre_layrnorm", "pre_ln"),
)


def legacy_name(name: str) -> str:
    for old, new in RENAMED:
        name = name.replace(old, new)
    return name


def write_like_llama_cpp(tiny: Tiny, folder: Path, path: Path, *, is_old: bool = False) -> Path:
    """Write an mmproj file with the metadata and the names of llama.cpp's converter, by gguf-py; old ones name neither
    the projector nor the feature."""
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed")
    vision, writer = tiny.vision, gguf.GGUFWriter(path, "clip")
    layers = vision["num_hidden_layers"] - 1
    for key, flag in (("has_text_encoder", False), ("has_vision_encoder", True), ("has_llava_projector", True)):
        writer.add_bool(f"clip.{key}", flag)
    writer.add_file_type(0)
    writer.add_description("image encoder for LLaVA")
    if not is_old:
        writer.add_string("clip.projector_type", "mlp")
        writer.add_array("clip.vision.feature_layer", [layers])
    for key in ("image_size", "patch_size", "projection_dim"):
        writer.add_uint32(f"clip.vision.{key}", vision[key])
    writer.add_uint32("clip.vision.embedding_length", vision["hidden_size"])
    writer.add_uint32("clip.vision.feed_forward_length", vision["intermediate_size"])
    writer.add_uint32("clip.vision.attention.head_count", vision["num_attention_heads"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_uint32("clip.vision.block_count", layers)
    writer.add_array("clip.vision.image_mean", [0.48145466, 0.4578275, 0.40821073])
    writer.add_array("clip.vision.image_std", [0.26862954, 0.26130258, 0.27577711])
    writer.add_bool("clip.use_gelu", False)
    for name, values in load_file(folder / "model.safetensors").items():
        is_late = f"encoder.layers.{layers}." in name
        if ("vision_tower" in name or "multi_modal" in name) and "post_layernorm" not in name and not is_late:
            writer.add_tensor(legacy_name(name), values.squeeze())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_ours(folder: Path, path: Path) -> Path:
    config = open_tower_config(folder)
    return write_mmproj(folder, path, from_folder(folder, config, any_token).to_metadata())


@pytest.mark.parametrize("is_old", [True, False])
def test_mmproj_of_llama_cpp(is_old: bool, folder_of: FolderOf, tmp_path: Path) -> None:
    tiny, folder = MODELS[0], folder_of(MODELS[0])
    path = write_like_llama_cpp(tiny, folder, tmp_path / "mmproj.gguf", is_old=is_old)
    image = as_image(tiny, draw_pixels(tiny, 2))
    assert_close(compute_rows(path, [image]), compute_rows(folder, [image]), "exact")
    assert replace(open_tower_config(path), eps=1e-5) == open_tower_config(folder)


def test_mmproj_of_ours(folder_of: FolderOf, tmp_path: Path) -> None:
    tiny, folder = MODELS[0], folder_of(MODELS[0])
    theirs = open_gguf(write_like_llama_cpp(tiny, folder, tmp_path / "theirs.gguf"))
    path = write_ours(folder, tmp_path / "ours.gguf")
    ours = open_gguf(path)
    swapped = {
        name.replace("ffn_down", "?").replace("ffn_up", "ffn_down").replace("?", "ffn_up") for name in theirs.tensors
    }
    assert set(ours.tensors) == swapped
    different = {"general.architecture", "general.type", "general.description", "general.file_type", "clip.use_gelu"}
    different |= {"clip.has_text_encoder", "clip.has_llava_projector", "clip.vision.projection_dim"}
    for key in (theirs.metadata.keys() | ours.metadata.keys()) - different:
        if not key.startswith("GGUF."):
            assert np.array_equal(theirs.metadata[key], ours.metadata[key]), key
    for file in (theirs, ours):
        file.close()
    image = as_image(tiny, draw_pixels(tiny, 2))
    assert_close(compute_rows(path, [image]), compute_rows(folder, [image]), "exact")


def test_mmproj_of_several_layers(folder_of: FolderOf, tmp_path: Path) -> None:
    """The file does not name the projector's approximation of GELU."""
    tiny, folder = MODELS[1], folder_of(MODELS[1])
    path = write_ours(folder, tmp_path / "mmproj.gguf")
    config, wanted = open_tower_config(path), open_tower_config(folder)
    assert isinstance(config, LlavaTowerConfig)
    assert replace(config, eps=1e-6, projector_act="gelu_tanh", activation="gelu") == wanted
    image = as_image(tiny, draw_pixels(tiny, 2))
    found, rows = (compute_rows(each, [image]) for each in (path, folder))
    assert np.abs(found - rows).max() < 1e-2 * np.ptp(rows)


def test_mmproj_files_cannot_keep_the_class_row(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = folder_of(MODELS[0])
    values = json.loads((folder / "config.json").read_text()) | {"vision_feature_select_strategy": "full"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="leave out the class embedding's row"):
        write_mmproj(tmp_path, tmp_path / "mmproj.gguf", {})


def test_text_and_mmproj_files_give_the_logits_of_the_folder(folder_of: FolderOf, tmp_path: Path) -> None:
    """Of a square picture: others are cropped by the folder's settings, and padded with a file."""
    tiny, file = MODELS[0], tmp_path / "text.gguf"
    folder = folder_of(tiny)
    save_models([OutputFile(file, from_hf(folder).model)])
    mmproj = write_like_llama_cpp(tiny, folder, tmp_path / "mmproj.gguf")
    picture, found = draw_picture(60, 60), []
    for path, tower in ((folder, None), (file, mmproj)):
        with LLM(path, backend="cpu", threads=1, mmproj=tower) as llm:
            found.append(llm.logits(llm.prompt_with_images("a<image>b", [picture])))
    assert_close(found[1], found[0], "f32")


@pytest.mark.parametrize(
    ("key", "kind", "value", "message"),
    [
        ("clip.vision.feature_layer", "[i32]", [3], r"feature_layer is \[3\]; it must be a list of layers from 1 to 2"),
        ("clip.vision.feature_layer", "[i32]", [0], "it must be a list of layers from 1 to 2"),
        ("clip.vision.feature_layer", "[i32]", [1] * 17, "it must be a list of layers"),
        ("clip.vision.feature_layer", "str", "2", "it must be a list of layers"),
        ("clip.vision.attention.head_count", "u32", 5, "embedding_length is 48; it must be whole heads"),
        ("clip.vision.patch_size", "u32", 0, "patch_size is 0"),
        ("clip.vision.image_size", "u32", 1 << 30, "image_size is 1073741824"),
        ("clip.vision.image_size", "u32", 56, "position_embd"),
        ("clip.vision.block_count", "u32", 1, "blk.1|feature_layer"),
        ("clip.vision.block_count", "u32", 4097, "block_count is 4097"),
        ("clip.vision.embedding_length", "u32", 30, "it must be .30, 3, 14, 14."),
        ("clip.vision.attention.layer_norm_epsilon", "f32", float("nan"), "layer_norm_epsilon is nan"),
        ("clip.projector_type", "str", "mlp2", "clip.projector_type is not supported"),
        ("clip.projector_type", "[i32]", [1, 2], "clip.projector_type is not supported"),
        ("general.architecture", "str", "llama", "not an mmproj file"),
    ],
)
def test_hostile_metadata(key: str, kind: str, value: Any, message: str, folder_of: FolderOf, tmp_path: Path) -> None:
    file = open_gguf(write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf"))
    metadata = {name: (file.kinds[name], each) for name, each in file.metadata.items()} | {key: (kind, value)}
    tensors = {name: file.tensor(name).dequantize() for name in file.tensors}
    file.close()
    changed = write_gguf_tensors(tmp_path / "changed.gguf", metadata, tensors)
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        compute_rows(changed, [as_image(MODELS[0], draw_pixels(MODELS[0], 1))])


@pytest.mark.parametrize("missing", ["v.class_embd", "mm.2.weight", "v.blk.1.ln2.bias", "v.patch_embd.weight"])
def test_missing_tensors(missing: str, folder_of: FolderOf, tmp_path: Path) -> None:
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    part = copy_without(tmp_path / "part.gguf", whole, missing)
    with pytest.raises(ModelFileError, match=missing if missing != "v.class_embd" else "v.patch_embd.bias"):
        compute_rows(part, [as_image(MODELS[0], draw_pixels(MODELS[0], 1))])


@pytest.mark.parametrize(
    ("changes", "vision", "message"),
    [
        ({}, {"model_type": "dinov2"}, "model_type is not supported"),
        ({}, {"hidden_act": "relu"}, "hidden_act is not supported"),
        ({}, {"num_attention_heads": 5}, "hidden_size must be a multiple of num_attention_heads"),
        ({}, {"num_channels": 4}, "num_channels is not supported"),
        ({}, {"image_size": 13}, "image_size is 13"),
        ({}, {"image_size": [42, 42]}, "image_size is"),
        ({"vision_feature_layer": 9}, {}, "vision_feature_layer is 9"),
        ({"vision_feature_layer": 0}, {}, "vision_feature_layer is 0"),
        ({"vision_feature_layer": [1, "a"]}, {}, "vision_feature_layer is"),
        ({"vision_feature_layer": []}, {}, "vision_feature_layer is"),
        ({"vision_feature_select_strategy": "all"}, {}, "vision_feature_select_strategy is not supported"),
        ({"projector_hidden_act": "tanh"}, {}, "projector_hidden_act is not supported"),
        ({"multimodal_projector_bias": 3}, {}, "multimodal_projector_bias is 3"),
    ],
)
def test_unusable_folders(
    changes: dict[str, Any], vision: dict[str, Any], message: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    values = json.loads((folder_of(MODELS[0]) / "config.json").read_text())
    changed = {**values, **changes, "vision_config": values["vision_config"] | vision}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    (tmp_path / "model.safetensors").symlink_to(folder_of(MODELS[0]) / "model.safetensors")
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(tmp_path)


def test_tower_without_a_config(tmp_path: Path) -> None:
    """LLaVA's class has CLIP-L/14 with 336 pixels where config.json says nothing of the tower."""
    save_file({"x": np.zeros(1, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlavaForConditionalGeneration"]}))
    config = open_tower_config(tmp_path)
    assert isinstance(config, LlavaTowerConfig)
    assert (config.width, config.layers, config.heads, config.grid, config.out_width) == (1024, 23, 16, 24, 4096)
