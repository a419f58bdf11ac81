"""CogVLM and CogVLM2 against plain forward passes of the authors' code, in folders and in GGUF and mmproj files.

transformers lacks them. LMDeploy's model file agrees with these forward passes, see docs/vision.md.
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import BACKENDS, open_available
from close import assert_close
from drawn_vision import write_drawn_folder
from mmproj_files import compute_rows, write_mmproj
from models.paper.cogvlm import forward
from models.paper.cogvlm_tower import tower_rows
from sporelm import LLM, SamplingParams
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
from sporelm.cli.main import main
from sporelm.engine.prompt_images import PromptIds
from sporelm.errors import ModelError, ModelFileError
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.processors.cogvlm import from_folder
from tower_tiles import copy_without, tiles_as_image, write_gguf_tensors
from vision_folders import draw_picture

TEXT: dict[str, Any] = {"architectures": ["CogVLMForCausalLM"], "hidden_size": 48, "intermediate_size": 70}
TEXT |= {"num_hidden_layers": 2, "num_attention_heads": 6, "rms_norm_eps": 1e-5, "vocab_size": 300}
TEXT |= {"tie_word_embeddings": False, "max_position_embeddings": 512, "hidden_act": "silu"}
TOWER: dict[str, Any] = {"hidden_size": 54, "intermediate_size": 75, "num_hidden_layers": 3, "num_heads": 3}
TOWER |= {"patch_size": 7, "layer_norm_eps": 1e-6, "hidden_act": "gelu", "in_channels": 3, "dropout_prob": 0.0}
MODELS = {
    "first": TEXT | {"vision_config": TOWER | {"image_size": 38, "num_positions": 26}},
    "second": TEXT
    | {"hidden_size": 56, "num_attention_heads": 7, "num_multi_query_heads": 1}
    | {"vision_config": TOWER | {"image_size": 42, "num_positions": 37}},
}
ROW = "<IMAGE_TOKEN>"
PROMPTS = [("ab", (1, 1)), ("a ROW b c", (300, 3)), ("ROW", (2, 90)), ("abc ROW", (50, 30))]


def side_of(name: str) -> int:
    """Pixels of a side that whole patches cover."""
    return int(MODELS[name]["vision_config"]["image_size"]) // 7 * 7


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Writes a model with drawn weights, once."""
    written: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in written:
            place = tmp_path_factory.mktemp(name)
            written[name] = write_drawn_folder(place, MODELS[name], (), ROW, {})
        return written[name]

    return write


def rows_of(name: str, folder: Path, pixels: np.ndarray) -> np.ndarray:
    """The rows of a picture [3, height, width], without the scores of experts."""
    return tower_rows(MODELS[name], load_file(folder / "model.safetensors"), pixels)


def pixels_of(name: str) -> np.ndarray:
    side = side_of(name)
    return np.random.default_rng(3).standard_normal((3, side, side)).astype(np.float32)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_those_of_the_authors(name: str, backend: str, eager: bool, folder_of: Any) -> None:
    open_available(backend).close()  # skips where it is missing
    folder, pixels = folder_of(name), pixels_of(name)
    wanted = rows_of(name, folder, pixels)
    found = compute_rows(folder, [tiles_as_image(pixels[None], 7, len(wanted))], backend, eager=eager)
    width = MODELS[name]["hidden_size"]
    assert np.abs(found[:, :width] - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert found[:, width : width + 2].tolist() == [[0, 1]] * (len(wanted) - 1) + [[1, 0]]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_authors(name: str, folder_of: Any) -> None:
    """A picture of one pixel, extreme ratios, pictures first and last."""
    folder = folder_of(name)
    tensors = load_file(folder / "model.safetensors")
    with LLM(folder, backend="cpu", threads=1) as llm:
        processor = processor_of(folder)
        for text, size in PROMPTS:
            picture = draw_picture(*size)
            (image,) = processor.process(picture).images
            pixels = whole_picture(image.patches, side_of(name))
            before, _, after = text.partition("ROW") if "ROW" in text else ("", "", text)
            head, tail = (llm.tokenizer.encode(part) for part in (before, after))
            ids = [*head, *[0] * image.num_rows, *tail]
            places = slice(len(head), len(head) + image.num_rows)
            wanted = forward(MODELS[name], tensors, ids, places, rows_of(name, folder, pixels))
            found = llm.logits(llm.prompt_with_images(text.replace("ROW", ROW), [picture]))
            assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


def processor_of(folder: Path) -> Any:
    source = open_tower(folder)
    source.close()
    return from_folder(folder, source.config, lambda text: False)  # type: ignore[arg-type]


def whole_picture(patches: np.ndarray, side: int) -> np.ndarray:
    """Patches [patches, 3 * 49], row by row, as a picture [3, side, side]."""
    grid = side // 7
    return patches.reshape(grid, grid, 3, 7, 7).transpose(2, 0, 3, 1, 4).reshape(3, side, side)


def test_the_last_row_of_a_picture_is_of_the_language_expert(folder_of: Any) -> None:
    """As the authors' `get_expert_mask` has it, and LMDeploy and llama.cpp have not."""
    folder = folder_of("first")
    tensors = load_file(folder / "model.safetensors")
    values = np.ones((4, 48))
    wanted = forward(MODELS["first"], tensors, [1, 0, 0, 0, 0, 2], slice(1, 5), values)
    for name in [name for name in tensors if "vision_" in name and ".layers.1." in name]:
        tensors[name] = tensors[name] * 2
    found = forward(MODELS["first"], tensors, [1, 0, 0, 0, 0, 2], slice(1, 5), values)
    assert np.array_equal(found[0], wanted[0])
    assert not np.allclose(found[3], wanted[3])


@pytest.mark.parametrize("name", MODELS)
def test_texts_behind_pictures_continue(name: str, folder_of: Any) -> None:
    """Cached tokens behind a picture, one by one, are those of the whole prompt."""
    folder = folder_of(name)
    picture = draw_picture(50, 30)
    with LLM(folder, backend="cpu", threads=1) as llm:
        prompt = llm.prompt_with_images(f"a{ROW}bc", [picture])
        (found,) = llm.generate(prompt, SamplingParams(max_tokens=6, temperature=0))
        tokens = list(found.token_ids)
        assert isinstance(prompt, PromptIds)
        whole = llm.logits(PromptIds([*prompt, *tokens], prompt.images))
    picked = whole[len(prompt) - 1 : -1].argmax(axis=1).tolist()
    assert picked == tokens


def test_logits_on_torch(folder_of: Any) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[torch]' runs its back-end")
    found, picture = [], draw_picture(50, 30)
    for backend in ("cpu", "torch"):
        with LLM(folder_of("second"), backend=backend, threads=1) as llm:
            found.append(llm.logits(llm.prompt_with_images(f"a{ROW}bc", [picture])))
    assert_close(found[1] / np.ptp(found[0]), found[0] / np.ptp(found[0]), "logits")


@pytest.mark.parametrize("name", MODELS)
def test_short_steps_and_company_change_no_bit(name: str, folder_of: Any) -> None:
    """Pictures are cut between steps, and rows of both kinds run beside a text."""
    params, picture = SamplingParams(max_tokens=4, temperature=0, logprobs=2), draw_picture(50, 30)
    with (
        LLM(folder_of(name), backend="cpu", threads=1) as whole,
        LLM(folder_of(name), backend="cpu", threads=1, token_budget=8) as cut,
    ):
        words = whole.prompt_ids("Some words.")
        ids = whole.prompt_with_images(f"a{ROW}" + "Some words." * 5, [picture])
        np.testing.assert_array_equal(whole.logits(ids), cut.logits(ids))
        alone = [whole.generate(each, params)[0] for each in (ids, words)]
        for one, other in zip(alone, cut.generate([ids, words], params), strict=True):
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


@pytest.mark.parametrize("name", MODELS)
def test_files_have_the_same_logits(name: str, folder_of: Any, tmp_path: Path) -> None:
    folder, picture = folder_of(name), draw_picture(50, 30)
    file, mmproj = tmp_path / "text.gguf", write_mmproj(folder, tmp_path / "mmproj.gguf", {})
    save_models([OutputFile(file, from_hf(folder).model)])
    found = []
    for path, options in ((folder, {}), (file, {"mmproj": mmproj})):
        with LLM(path, backend="cpu", threads=1, **options) as llm:
            found.append(llm.logits(llm.prompt_with_images(f"a{ROW}bc", [picture])))
    assert_close(found[1], found[0], "exact")


@pytest.mark.parametrize("name", MODELS)
def test_files_become_a_folder(name: str, folder_of: Any, tmp_path: Path) -> None:
    folder, text, mmproj = folder_of(name), tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["gguf", "from-hf", str(folder), "-o", str(text)]) == 0
        assert main(["gguf", "from-hf", str(folder), "--mmproj", "-o", str(mmproj)]) == 0
        assert main(["gguf", "to-hf", str(text), "--mmproj", str(mmproj), "-o", str(tmp_path / "back")]) == 0
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "back"))
    assert before.keys() == after.keys()
    for tensor, values in before.items():
        assert_close(after[tensor], values, "exact")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["vision_config"] == MODELS[name]["vision_config"]
    assert config.get("num_multi_query_heads") == MODELS[name].get("num_multi_query_heads")


def test_file_of_llama_cpp(folder_of: Any, tmp_path: Path) -> None:
    """Names, keys and shapes of llama.cpp's conversion/cogvlm.py, for the first model."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf compares with llama.cpp's names")
    folder, path = folder_of("first"), tmp_path / "theirs.gguf"
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_heads"])
    writer.add_vision_image_mean([0.48145466, 0.4578275, 0.40821073])
    writer.add_vision_image_std([0.26862954, 0.26130258, 0.27577711])
    writer.add_vision_attention_layernorm_eps(1e-6)
    writer.add_clip_projector_type(gguf.VisionProjectorType.COGVLM)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    for name, values in load_file(folder / "model.safetensors").items():
        if name.startswith("model.vision."):
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    image = tiles_as_image(pixels_of("first")[None], 7, 27)
    assert np.array_equal(compute_rows(path, [image], "cpu"), compute_rows(folder, [image], "cpu"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("first", {"num_positions": 27}, "num_positions is 27; it must be 26"),
        ("first", {"num_heads": 4}, "must be a multiple of num_attention_heads"),
        (
            "second",
            {"image_size": 35, "num_positions": 26},
            "a tile has 5 patches a side",
        ),
        ("first", {"hidden_act": "relu6"}, "hidden_act is not supported"),
        ("first", {"patch_size": 0}, "patch_size is 0"),
        ("first", {"in_channels": 4}, "in_channels is 4"),
        ("first", {"hidden_size": None}, "hidden_size is missing"),
    ],
)
def test_bad_folders_are_refused(
    name: str, changes: dict[str, Any], message: str, folder_of: Any, tmp_path: Path
) -> None:
    config = MODELS[name] | {"vision_config": MODELS[name]["vision_config"] | changes}
    save_file(load_file(folder_of(name) / "model.safetensors"), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        open_tower(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.vision.image_size": ("u32", 0)}, "image_size is 0"),
        ({"clip.vision.projection_dim": ("u32", 0)}, "projection_dim is 0"),
        ({"clip.vision.attention.layer_norm_epsilon": ("f32", -1.0)}, "layer_norm_epsilon is -1"),
        ({}, r"mm.up.weight is \[\]; it must be a matrix"),
    ],
)
def test_bad_metadata_is_refused(
    changes: dict[str, tuple[str, Any]], message: str, folder_of: Any, tmp_path: Path
) -> None:
    shapes = {"v.blk.0.ln1.bias": np.zeros(3)} | ({"mm.up.weight": np.zeros((3, 3))} if changes else {})
    source = open_tower(folder_of("first"))
    metadata = tower_gguf_schema("cogvlm").metadata_from_config(source.config)  # type: ignore[arg-type]
    source.close()
    path = write_gguf_tensors(tmp_path / "bad.gguf", metadata | changes, shapes)
    with pytest.raises(ModelFileError, match=message):
        open_tower(path)


@pytest.mark.parametrize("missing", ["v.boi", "v.blk.1.attn_qkv.bias", "mm.conv.bias", "mm.down.weight"])
def test_missing_tensors_are_named(missing: str, folder_of: Any, tmp_path: Path) -> None:
    whole = write_mmproj(folder_of("second"), tmp_path / "whole.gguf", {})
    cut = copy_without(tmp_path / "cut.gguf", whole, missing)
    with pytest.raises(ModelFileError, match=missing):
        compute_rows(cut, [tiles_as_image(pixels_of("second")[None], 7, 11)], "cpu")
