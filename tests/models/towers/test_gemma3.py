"""Gemma 3 against transformers, from folders and from mmproj files."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from available import BACKENDS
from clip_towers import any_token
from close import assert_close
from llava_models import (
    MISSING,
    ODD_VIT,
    SIGLIP,
    TEXT,
    VIT,
    Tiny,
    draw_pixels,
    model_of,
    their_logits,
    their_tokenizer,
    write_tiny,
)
from mmproj_files import compute_rows, open_tower_config, write_mmproj
from sporelm import LLM, SamplingParams
from sporelm.checkpoints.towers.open_tower import open_tower
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.processors.gemma3 import from_folder
from tower_tiles import copy_without, tiles_as_image, write_gguf_tensors
from vision_folders import draw_picture, token_ids

TOKENS = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
IDS = token_ids(tuple(TOKENS.values()))
OUTER = {
    "image_token_index": IDS["<image_soft_token>"],
    "boi_token_index": IDS["<start_of_image>"],
    "eoi_token_index": IDS["<end_of_image>"],
}
GEMMA = TEXT | {"model_type": "gemma3_text", "hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 3}
GEMMA |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16}
GEMMA |= {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
PAN: dict[str, Any] = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 20, "pan_and_scan_max_num_crops": 3}
PAN |= {"pan_and_scan_min_ratio_to_activate": 1.5}
MODELS = [
    Tiny(
        "even",
        "Gemma3",
        TOKENS,
        SIGLIP | VIT | {"image_size": 48, "patch_size": 6},
        GEMMA,
        OUTER | {"mm_tokens_per_image": 16},
        {"size": {"height": 48, "width": 48}},
        {"image_seq_length": 16},
    ),
    Tiny(
        "patches left over, crops",
        "Gemma3",
        TOKENS,
        SIGLIP | ODD_VIT | {"image_size": 52, "patch_size": 7, "hidden_act": "gelu"},
        GEMMA | {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 54, "sliding_window": 3},
        OUTER | {"mm_tokens_per_image": 4},
        {"size": {"height": 52, "width": 52}, "resample": 3, **PAN},
        {"image_seq_length": 4},
    ),
]
BEGIN = "<start_of_image>"
PROMPTS: list[tuple[str, list[tuple[int, int]]]] = [
    (f"{BEGIN}ab", [(1, 1)]),
    (f"a{BEGIN}", [(200, 30)]),
    (BEGIN, [(2, 90)]),
    (f"{BEGIN}a\n{BEGIN}bc{BEGIN}", [(50, 30), (42, 42), (16, 9)]),
    (f"ab{BEGIN}\n{BEGIN}c", [(90, 91), (1, 7)]),
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
            written[tiny.name] = write_tiny(tiny, tmp_path_factory.mktemp("gemma3"), BEGIN)
        return written[tiny.name]

    return write


def their_processor(tiny: Tiny, folder: Path) -> Any:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
    from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

    images = Gemma3ImageProcessorPil(**tiny.settings)
    processor = Gemma3Processor(images, their_tokenizer(tiny, folder), **tiny.processor)
    # The class passes its own defaults on, whatever the settings of the folder are.
    given = {key: value for key, value in tiny.settings.items() if "pan_and_scan" in key}
    vars(processor)["images_kwargs"] = {**processor.images_kwargs, **given}
    return processor


def their_rows(tiny: Tiny, pixels: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        found = model_of(tiny).get_image_features(pixel_values=torch.from_numpy(pixels)).pooler_output
    return np.concatenate([np.asarray(each) for each in found])


def as_image(tiny: Tiny, pixels: np.ndarray) -> ImageInput:
    side = tiny.side * tiny.vision["patch_size"]
    rows = len(pixels) * tiny.outer["mm_tokens_per_image"]
    return tiles_as_image(pixels[:, :, :side, :side], tiny.vision["patch_size"], rows)


@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.name)
def test_logits_are_those_of_transformers(tiny: Tiny, folder_of: FolderOf) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last, and crops of them. Pictures
    are longer than the window."""
    folder = folder_of(tiny)
    processor = their_processor(tiny, folder)
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = [draw_picture(*size, seed=number) for number, size in enumerate(sizes)]
            wanted = their_logits(tiny, processor, text, pictures)
            found = llm.logits(llm.prompt_with_images(text, pictures))
            assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.name)
def test_answers_are_those_of_transformers(tiny: Tiny, folder_of: FolderOf) -> None:
    """A chat about two pictures: greedy tokens, which are computed one by one behind them."""
    import torch
    from PIL import Image

    folder, pictures = folder_of(tiny), [draw_picture(60, 40), draw_picture(30, 50, seed=1)]
    text = f"<|im_start|>user\n{BEGIN}ab{BEGIN}<|im_end|>\n<|im_start|>assistant\n"
    inputs = their_processor(tiny, folder)(
        text=text, images=[Image.fromarray(each) for each in pictures], return_tensors="pt"
    )
    with torch.no_grad():
        output = model_of(tiny).generate(**inputs, do_sample=False, max_new_tokens=10)
    wanted = output[0, inputs["input_ids"].shape[1] :].tolist()
    first, second = ({"type": "image", "image": each} for each in pictures)
    message = {"role": "user", "content": [first, {"type": "text", "text": "ab"}, second]}
    with LLM(folder, backend="cpu", threads=1) as llm:
        answer = llm.chat([message], SamplingParams(temperature=0, max_tokens=10, ignore_eos=True))
    assert answer.prompt_token_ids == inputs["input_ids"][0].tolist()
    assert list(answer.token_ids) == wanted


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
    pixels = draw_pixels(tiny, 3)
    whole = compute_rows(folder_of(tiny), [as_image(tiny, pixels)], "cpu", eager=False)
    alone = compute_rows(folder_of(tiny), [as_image(tiny, each[None]) for each in pixels], "cpu", eager=False, piece=5)
    assert_close(alone, whole, "exact")


def write_like_llama_cpp(tiny: Tiny, folder: Path, path: Path) -> Path:
    """Write an mmproj file by gguf-py, as Gemma3VisionModel in llama.cpp's conversion/gemma.py does."""
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed")
    vision, writer = tiny.vision, gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(tiny.text["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_image_mean([0.5] * 3)
    writer.add_vision_image_std([0.5] * 3)
    writer.add_clip_projector_type(gguf.VisionProjectorType.GEMMA3)
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(tiny.side // int(tiny.outer["mm_tokens_per_image"] ** 0.5))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    for name, values in load_file(folder / "model.safetensors").items():
        if "head." in name or not name.startswith(("vision_tower", "multi_modal")):
            continue
        # as published: transformers 5 leaves out one level of these names
        full = name.replace("vision_tower.", "vision_tower.vision_model.").replace("_weight", ".weight")
        stored = names.get_name(full, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        writer.add_tensor(stored, values + np.float32("soft_emb_norm" in name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_ours(folder: Path, path: Path) -> Path:
    config = open_tower_config(folder)
    return write_mmproj(folder, path, from_folder(folder, config, any_token).to_metadata())


def test_mmproj_of_llama_cpp(folder_of: FolderOf, tmp_path: Path) -> None:
    tiny, folder = MODELS[0], folder_of(MODELS[0])
    path = write_like_llama_cpp(tiny, folder, tmp_path / "mmproj.gguf")
    image = as_image(tiny, draw_pixels(tiny, 2))
    assert_close(compute_rows(path, [image]), compute_rows(folder, [image]), "exact")
    assert replace(open_tower_config(path), eps=1e-6) == open_tower_config(folder)


def test_mmproj_of_ours_equals_that_of_llama_cpp(folder_of: FolderOf, tmp_path: Path) -> None:
    tiny, folder = MODELS[0], folder_of(MODELS[0])
    theirs = open_gguf(write_like_llama_cpp(tiny, folder, tmp_path / "theirs.gguf"))
    ours = open_gguf(write_ours(folder, tmp_path / "ours.gguf"))
    assert {name: info.shape for name, info in ours.tensors.items()} == {
        name: info.shape for name, info in theirs.tensors.items()
    }
    for name in theirs.tensors:
        assert_close(ours.tensor(name).dequantize(), theirs.tensor(name).dequantize(), "exact")
    for key in theirs.metadata.keys() | ours.metadata.keys():
        if key != "general.file_type" and key != SCALE:
            assert np.array_equal(ours.metadata[key], theirs.metadata[key]), key
    assert ours.metadata[SCALE] == theirs.metadata[SCALE] == 2
    for file in (theirs, ours):
        file.close()


SCALE = "clip.vision.projector.scale_factor"


def test_usual_scale_is_not_written(folder_of: FolderOf, tmp_path: Path) -> None:
    """llama.cpp takes 4 where a file has none."""
    folder = folder_of(MODELS[0])
    values = json.loads((folder / "config.json").read_text()) | {"mm_tokens_per_image": 4}
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    path = write_mmproj(tmp_path, tmp_path / "mmproj.gguf", {})
    file = open_gguf(path)
    assert SCALE not in file.metadata
    file.close()
    assert open_tower_config(path).merge == open_tower_config(tmp_path).merge == 4


def test_text_and_mmproj_files_give_the_logits_of_the_folder(folder_of: FolderOf, tmp_path: Path) -> None:
    tiny, file = MODELS[0], tmp_path / "text.gguf"
    folder = folder_of(tiny)
    save_models([OutputFile(file, from_hf(folder).model)])
    mmproj = write_like_llama_cpp(tiny, folder, tmp_path / "mmproj.gguf")
    picture, found = draw_picture(60, 40), []
    for path, tower in ((folder, None), (file, mmproj)):
        with LLM(path, backend="cpu", threads=1, mmproj=tower) as llm:
            found.append(llm.logits(llm.prompt_with_images(f"a{BEGIN}b", [picture])))
    assert_close(found[1], found[0], "f32")


@pytest.mark.parametrize(
    ("key", "kind", "value", "message"),
    [
        (SCALE, "u32", 0, "scale_factor is 0"),
        (SCALE, "u32", 9, "scale_factor is 9"),
        (SCALE, "str", "2", "scale_factor is '2'"),
        ("clip.vision.projection_dim", "u32", 41, "mm.input_projection.weight"),
        ("clip.vision.projection_dim", "u32", 0, "projection_dim is 0"),
        ("clip.vision.patch_size", "u32", 12, "v.patch_embd.weight|v.position_embd.weight"),
        ("clip.vision.image_size", "u32", 5, "image_size is 5"),
        ("clip.projector_type", "str", "gemma3nv", "clip.projector_type is not supported"),
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


@pytest.mark.parametrize("missing", ["mm.soft_emb_norm.weight", "v.post_ln.bias", "v.position_embd.weight"])
def test_missing_tensors(missing: str, folder_of: FolderOf, tmp_path: Path) -> None:
    whole = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    part = copy_without(tmp_path / "part.gguf", whole, missing)
    with pytest.raises(ModelFileError, match=missing):
        compute_rows(part, [as_image(MODELS[0], draw_pixels(MODELS[0], 1))])


@pytest.mark.parametrize(
    ("changes", "vision", "message"),
    [
        ({"mm_tokens_per_image": 10}, {}, "8x8 patches cannot be averaged to as many rows"),
        ({"mm_tokens_per_image": 81}, {}, "8x8 patches cannot be averaged to as many rows"),
        ({"mm_tokens_per_image": 0}, {}, "mm_tokens_per_image is 0"),
        ({}, {"model_type": "clip_vision_model"}, "model_type is not supported"),
        ({}, {"hidden_act": "relu"}, "hidden_act is not supported"),
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
