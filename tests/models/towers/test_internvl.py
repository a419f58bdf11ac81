"""InternVL's tower: against transformers, under the names of both classes, and in mmproj files."""

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from available import BACKENDS, open_available
from close import assert_close
from families import CASES, write_case
from internvl_chat import write_chat_folder
from mmproj_files import compute_rows, write_mmproj
from sporelm import LLM, SamplingParams
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema
from sporelm.cli.main import main
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.bicubic import resize_bicubic
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from stepping import Stepper
from tower_tiles import copy_without, tiles_as_image, write_gguf_tensors
from vision_folders import draw_picture, draw_weights, token_ids, write_vision_folder

LIVE = "is not installed: pip install 'sporelm[live]' compares live"
# A tower as the 300M's, and one as the 6B's: heads of 18 and of 14, which no tile of a kernel divides.
SMALL: dict[str, Any] = {"norm_type": "layer_norm", "use_qk_norm": False, "attention_bias": True, "hidden_size": 54}
LARGE: dict[str, Any] = {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False, "hidden_size": 70}
TOWERS = {
    "small": SMALL | {"num_attention_heads": 3, "image_size": [42, 42], "patch_size": [7, 7], "layer_norm_eps": 1e-5},
    "large": LARGE | {"num_attention_heads": 5, "image_size": [40, 40], "patch_size": [10, 10]},
}
SHARED: dict[str, Any] = {"intermediate_size": 75, "num_hidden_layers": 3, "hidden_act": "gelu"}
TEXT: dict[str, Any] = {"vocab_size": 300, "hidden_size": 42, "intermediate_size": 64, "num_hidden_layers": 2}
TEXT |= {"num_attention_heads": 3, "num_key_value_heads": 1, "model_type": "qwen2", "max_position_embeddings": 1024}
NORMAL = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
TEXTS = {"small": TEXT, "large": TEXT | {"model_type": "llama", "hidden_size": 56, "num_attention_heads": 7}}
TOKENS = ("<img>", "</img>", "<IMG_CONTEXT>")
PROMPTS: list[tuple[str, list[tuple[int, int]]]] = [
    ("PICTUREab", [(1, 1)]),
    ("aPICTURE", [(300, 3)]),
    ("PICTURE", [(2, 90)]),
    ("PICTURE\nPICTUREbcPICTURE", [(50, 30), (42, 42), (16, 9)]),
    ("abPICTUREc", [(150, 91)]),
]


def pixels_of(name: str, tiles: int = 2) -> np.ndarray:
    side = TOWERS[name]["image_size"][0]
    return np.random.default_rng(tiles).standard_normal((tiles, 3, side, side)).astype(np.float32)


def image_of(name: str, tiles: int = 2) -> Any:
    side, patch = TOWERS[name]["image_size"][0], TOWERS[name]["patch_size"][0]
    return tiles_as_image(pixels_of(name, tiles), patch, tiles * (side // patch // 2) ** 2)


def settings_of(name: str) -> dict[str, Any]:
    """Of the image processor."""
    side = TOWERS[name]["image_size"][0]
    size = {"size": {"height": side, "width": side}, "max_patches": 5}
    return size | {f"image_{key}": value for key, value in NORMAL.items()}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, np.ndarray]]:
    """Writes a random model of transformers, once, and gives its folder and the rows of `image_of`."""
    torch = pytest.importorskip("torch", reason=f"torch {LIVE}")
    transformers = pytest.importorskip("transformers", reason=f"transformers {LIVE}")
    made: dict[str, tuple[Path, np.ndarray]] = {}

    def make(name: str) -> tuple[Path, np.ndarray]:
        if name not in made:
            ids = {"image_token_id": token_ids(TOKENS)["<IMG_CONTEXT>"]}
            config = transformers.InternVLConfig(vision_config=TOWERS[name] | SHARED, text_config=TEXTS[name], **ids)
            model = draw_weights(transformers.InternVLForConditionalGeneration(config), len(name), 0.2)
            files = {"preprocessor_config.json": settings_of(name)}
            folder = tmp_path_factory.mktemp(name)
            write_vision_folder(folder, model, TOKENS, "<IMG_CONTEXT>", files)
            with torch.no_grad():
                rows = model.get_image_features(torch.from_numpy(pixels_of(name))).pooler_output
            made[name] = folder, rows.reshape(-1, rows.shape[-1]).numpy()
        return made[name]

    return make


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TOWERS)
def test_rows_are_those_of_transformers(name: str, backend: str, eager: bool, folders: Any) -> None:
    folder, wanted = folders(name)
    found = compute_rows(folder, [image_of(name)], backend, eager=eager)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", TOWERS)
def test_logits_are_those_of_transformers(name: str, folders: Any) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last."""
    folder, _ = folders(name)
    import torch
    from transformers import InternVLForConditionalGeneration
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    model = InternVLForConditionalGeneration.from_pretrained(folder).eval()
    processor, ids = GotOcr2ImageProcessorPil(**settings_of(name)), token_ids(TOKENS)
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = [draw_picture(*size, seed=number) for number, size in enumerate(sizes)]
            inputs = processor([Image.fromarray(each) for each in pictures], crop_to_patches=True, return_tensors="pt")
            rows = (TOWERS[name]["image_size"][0] // TOWERS[name]["patch_size"][0] // 2) ** 2
            counts = [rows * int(tiles) for tiles in np.ravel(inputs["num_patches"])]
            tokens = list[int]()
            for number, piece in enumerate(text.split("PICTURE")):
                if number:
                    tokens += [ids["<img>"], *[ids["<IMG_CONTEXT>"]] * counts[number - 1], ids["</img>"]]
                tokens += llm.tokenizer.encode(piece)
            with torch.no_grad():
                pixels = inputs["pixel_values"].float()
                wanted = model(input_ids=torch.tensor([tokens]), pixel_values=pixels).logits[0].numpy()
            prompt = llm.prompt_with_images(text.replace("PICTURE", "<IMG_CONTEXT>"), pictures)
            found = llm.logits(prompt)
            assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("name", TOWERS)
def test_both_classes_have_the_same_rows(name: str, folders: Any, tmp_path: Path) -> None:
    folder, _ = folders(name)
    chat = write_chat_folder(tmp_path / "chat", folder)
    wanted, found = (compute_rows(each, [image_of(name)], "cpu") for each in (folder, chat))
    # transformers' class has a fixed epsilon for queries and keys, which is that of the large tower's layers.
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", TOWERS)
def test_both_classes_have_the_same_logits(name: str, folders: Any, tmp_path: Path) -> None:
    """From folders, and from the text model and the tower as two GGUF files."""
    folder, _ = folders(name)
    tiles = {"dynamic_image_size": True, "use_thumbnail": True, "max_dynamic_patch": 5}
    chat = write_chat_folder(tmp_path / "chat", folder, **tiles)
    picture, found = draw_picture(150, 91), []
    text = "ab<IMG_CONTEXT>c"
    file, mmproj = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    save_models([OutputFile(file, from_hf(chat).model)])
    write_mmproj(chat, mmproj, {f"clip.vision.image_{key}": ("[f32]", value) for key, value in NORMAL.items()})
    for path, options in ((folder, {}), (chat, {}), (file, {"mmproj": mmproj})):
        with LLM(path, backend="cpu", threads=1, **options) as llm:
            found.append(llm.logits(llm.prompt_with_images(text, [picture])))
    assert_close(found[1], found[0], "exact")
    assert_close(found[2], found[0], "logits")


def test_files_become_a_folder_of_transformers(folders: Any, tmp_path: Path) -> None:
    folder, wanted = folders("small")
    text, mmproj, back = tmp_path / "text.gguf", tmp_path / "mmproj.gguf", tmp_path / "back"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(["gguf", "from-hf", str(folder), "-o", str(text)]) == 0
        assert main(["gguf", "from-hf", str(folder), "--mmproj", "-o", str(mmproj)]) == 0
        assert main(["gguf", "to-hf", str(text), "--mmproj", str(mmproj), "-o", str(back)]) == 0
    assert np.abs(compute_rows(back, [image_of("small")]) - wanted).max() <= 1e-5 * np.abs(wanted).max()
    from transformers import InternVLForConditionalGeneration

    model, report = InternVLForConditionalGeneration.from_pretrained(back, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    settings = json.loads((back / "preprocessor_config.json").read_text())
    for key, value in settings_of("small").items():
        assert settings[key] == (pytest.approx(value) if key.startswith("image_") else value)
    assert model.config.image_token_id == token_ids(TOKENS)["<IMG_CONTEXT>"]


def test_short_steps_and_company_change_no_bit(folders: Any) -> None:
    """Tiles are cut between steps, and run beside a text."""
    folder, _ = folders("small")
    params = SamplingParams(max_tokens=4, temperature=0, logprobs=2)
    with (
        LLM(folder, backend="cpu", threads=1) as whole,
        LLM(folder, backend="cpu", threads=1, token_budget=8) as cut,
    ):
        words = whole.prompt_ids("Some words.")
        ids = whole.prompt_with_images("a<IMG_CONTEXT>" + "Some words." * 5, [draw_picture(90, 50)])
        np.testing.assert_array_equal(whole.logits(ids), cut.logits(ids))
        alone = [whole.generate(each, params)[0] for each in (ids, words)]
        for one, other in zip(alone, cut.generate([ids, words], params), strict=True):
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def test_first_pixel_shuffle_goes_down_columns(folders: Any, tmp_path: Path) -> None:
    """ps_version v1 leaves height and width swapped, as the authors' `pixel_shuffle` warns."""
    folder, _ = folders("small")
    chats = [write_chat_folder(tmp_path / version, folder, ps_version=version) for version in ("v1", "v2")]
    first, second = (compute_rows(each, [image_of("small")], "cpu").reshape(2, 3, 3, -1) for each in chats)
    assert_close(first, second.transpose(0, 2, 1, 3), "f32")
    assert np.abs(first - second).max() > 0.1


def test_a_layer_before_the_last(folders: Any, tmp_path: Path) -> None:
    folder, _ = folders("small")
    early = write_chat_folder(tmp_path / "early", folder, select_layer=-2)
    source = open_tower(early)
    assert source.config.layers == 2
    source.close()
    shallow = write_chat_folder(tmp_path / "shallow", folder)
    config = json.loads((shallow / "config.json").read_text())
    config["vision_config"]["num_hidden_layers"] = 2
    (shallow / "config.json").write_text(json.dumps(config))
    tensors = {
        name: values for name, values in load_file(shallow / "model.safetensors").items() if ".layers.2." not in name
    }
    save_file(tensors, shallow / "model.safetensors")
    wanted, found = (compute_rows(each, [image_of("small")], "cpu") for each in (early, shallow))
    assert np.array_equal(found, wanted)


@pytest.mark.parametrize(("old", "new"), [((4, 4), (6, 6)), ((7, 7), (4, 5)), ((1, 1), (2, 3)), ((3, 3), (3, 3))])
def test_positions_are_interpolated_as_by_torch(old: tuple[int, int], new: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch", reason=f"torch {LIVE}")
    grid = np.random.default_rng(0).standard_normal((*old, 5)).astype(np.float32)
    given = torch.from_numpy(grid).permute(2, 0, 1)[None]
    wanted = torch.nn.functional.interpolate(given, size=new, mode="bicubic", align_corners=False)[0]
    assert np.abs(resize_bicubic(grid, *new) - wanted.permute(1, 2, 0).numpy()).max() < 2e-6


def test_tiles_of_another_size_than_the_positions(folders: Any, tmp_path: Path) -> None:
    """`force_image_size`; the class of transformers interpolates positions in the same way."""
    torch = pytest.importorskip("torch", reason=f"torch {LIVE}")
    transformers = pytest.importorskip("transformers", reason=f"transformers {LIVE}")
    folder, _ = folders("small")
    chat = write_chat_folder(tmp_path / "chat", folder, force_image_size=56)
    pixels = np.random.default_rng(5).standard_normal((1, 3, 56, 56)).astype(np.float32)
    model = transformers.InternVLForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        wanted = model.get_image_features(torch.from_numpy(pixels)).pooler_output[0].numpy()
    found = compute_rows(chat, [tiles_as_image(pixels, 7, 16)], "cpu")
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("name", TOWERS)
def test_mmproj_file_has_the_same_rows(name: str, folders: Any, tmp_path: Path) -> None:
    folder, _ = folders(name)
    chat = write_chat_folder(tmp_path / "chat", folder)
    wanted = compute_rows(chat, [image_of(name)], "cpu")
    ours = write_mmproj(chat, tmp_path / "ours.gguf", {})
    assert np.array_equal(compute_rows(ours, [image_of(name)], "cpu"), wanted)
    theirs = write_as_llama_cpp(tmp_path / "theirs.gguf", chat)
    assert np.array_equal(compute_rows(theirs, [image_of(name)], "cpu"), wanted)


def write_as_llama_cpp(path: Path, chat: Path) -> Path:
    """Write names, keys and shapes of llama.cpp's conversion/internvl.py, for the authors' class."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed: pip install gguf compares with llama.cpp's names")
    config = json.loads((chat / "config.json").read_text())
    vision = config["vision_config"]
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type(gguf.GGUFType.MMPROJ)
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_projection_dim(config["llm_config"]["hidden_size"])
    writer.add_vision_image_size(vision["image_size"])
    writer.add_vision_patch_size(vision["patch_size"])
    writer.add_vision_embedding_length(vision["hidden_size"])
    writer.add_vision_feed_forward_length(vision["intermediate_size"])
    writer.add_vision_block_count(vision["num_hidden_layers"])
    writer.add_vision_head_count(vision["num_attention_heads"])
    writer.add_vision_image_mean([0.485, 0.456, 0.406])
    writer.add_vision_image_std([0.229, 0.224, 0.225])
    writer.add_clip_projector_type(gguf.VisionProjectorType.INTERNVL)
    writer.add_vision_attention_layernorm_eps(vision["layer_norm_eps"])
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)  # mlp1.3 counts as a layer

    def add(name: str, values: np.ndarray) -> None:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        writer.add_tensor(found, np.ascontiguousarray(values))

    for name, values in load_file(chat / "model.safetensors").items():
        if name.startswith("language_model."):
            continue
        name = f"vision_tower.{name}" if name.startswith("vision_model") else name
        if (".ls" in name or "position_embedding" in name) and not name.endswith(".weight"):
            name += ".weight"
        if ".qkv." not in name:
            add(name, values)
            continue
        for part, each in zip("qkv", np.split(values, 3), strict=True):
            add(name.replace("attn.qkv", f"self_attn.{part}_proj"), each)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    "name", ["internlm2", "llama", "qwen2", "phi3", "qwen3-odd-tied-biases", "qwen3moe", "gpt-oss"]
)
def test_text_model_of_the_authors_class(name: str, load: Callable[..., Stepper], tmp_path: Path) -> None:
    """`llm_config` is the config.json of a family above, and its tensors have a prefix."""
    case = next(each for each in CASES if each.name == name)
    plain, place = write_case(tmp_path / "plain", case), tmp_path / "chat"
    place.mkdir()
    outer = {"architectures": ["InternVLChatModel"], "vision_config": {}, "llm_config": case.config}
    (place / "config.json").write_text(json.dumps(outer))
    tensors = {f"language_model.{key}": values for key, values in case.tensors().items()}
    unread = ["vision_model.embeddings.class_embedding", "mlp1.0.weight"]
    save_file(tensors | dict.fromkeys(unread, np.ones((2, 3), np.float32)), place / "model.safetensors")
    cpu = open_available("cpu", threads=1)
    runners = [load(folder, cpu, context=64, eager=True) for folder in (plain, place)]
    wanted, found = (runner.step([(0, case.ids()[:9])])["logits"] for runner in runners)
    assert_close(found, wanted, "exact")
    for runner in runners:
        runner.close()
    cpu.close()


@pytest.mark.parametrize(
    ("llm", "message"),
    [
        ({}, "its class in llm_config is None"),
        ({"architectures": ["BloomyForCausalLM"]}, "its class in llm_config is 'BloomyForCausalLM'"),
        ({"architectures": ["InternVLChatModel"], "llm_config": {}}, "its class in llm_config is 'InternVLChatModel'"),
    ],
)
def test_other_text_models_are_refused(llm: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_hf({"architectures": ["InternVLChatModel"], "llm_config": llm}, "config.json")


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"ps_version": "v3"}, UnsupportedModel, "ps_version is not supported"),
        ({"use_backbone_lora": 16}, UnsupportedModel, "use_backbone_lora and use_llm_lora are not supported"),
        ({"downsample_ratio": 0.3}, ModelFileError, "it must be 1 divided by an integer"),
        ({"downsample_ratio": 0.2}, ModelFileError, "a tile has 6 patches a side; it must be a positive multiple of 5"),
        ({"force_image_size": 35}, ModelFileError, "a tile has 5 patches a side"),
        ({"select_layer": -9}, ModelFileError, "select_layer is -9"),
        ({"min_dynamic_patch": 9, "max_dynamic_patch": 4}, ModelFileError, "max_dynamic_patch is 4"),
        ({"max_dynamic_patch": 1 << 30}, ModelFileError, "max_dynamic_patch is"),
        ({"vision_config": {"norm_type": "batch_norm"}}, UnsupportedModel, "norm_type is not supported"),
        ({"vision_config": {"hidden_act": "relu6"}}, UnsupportedModel, "hidden_act is not supported"),
        ({"vision_config": {"image_size": [42, 35]}}, ModelFileError, "image_size is"),
        ({"vision_config": {"num_attention_heads": 4}}, ModelFileError, "must be a multiple of num_attention_heads"),
    ],
)
def test_bad_folders_are_refused(
    changes: dict[str, Any], kind: type[ModelError], message: str, folders: Any, tmp_path: Path
) -> None:
    inner = changes.pop("vision_config", {})
    chat = write_chat_folder(tmp_path / "chat", folders("small")[0], **changes)
    config = json.loads((chat / "config.json").read_text())
    config["vision_config"] |= inner
    (chat / "config.json").write_text(json.dumps(config))
    with pytest.raises(kind, match=message):
        open_tower(chat)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip.vision.embedding_length": ("u32", 0)}, "embedding_length is 0"),
        ({"clip.vision.block_count": ("u32", 1 << 31)}, "block_count is"),
        ({"clip.vision.patch_size": ("u32", 0)}, "patch_size is 0"),
        ({"clip.vision.patch_size": ("u32", 41)}, "a tile has 1 patches a side"),
        ({"clip.vision.image_size": ("str", "large")}, "image_size is 'large'"),
        ({"clip.vision.attention.head_count": ("u32", 4)}, "must be whole heads, of 4"),
        ({"clip.vision.projector.scale_factor": ("u32", 0)}, "scale_factor is 0"),
        ({"clip.vision.preproc_max_tiles": ("u32", 1 << 31)}, "preproc_max_tiles is"),
        ({"clip.vision.attention.layer_norm_epsilon": ("f32", float("nan"))}, "layer_norm_epsilon is nan"),
        ({"clip.use_gelu": ("str", "yes")}, "use_gelu is 'yes'"),
    ],
)
def test_bad_metadata_is_refused(
    changes: dict[str, tuple[str, Any]], message: str, folders: Any, tmp_path: Path
) -> None:
    source = open_tower(write_chat_folder(tmp_path / "chat", folders("small")[0]))
    metadata = tower_gguf_schema("internvl").metadata_from_config(source.config)  # type: ignore[arg-type]
    source.close()
    path = write_gguf_tensors(tmp_path / "bad.gguf", metadata | changes, {"v.blk.0.ln1.bias": np.zeros(3)})
    with pytest.raises(ModelFileError, match=message):
        open_tower(path)


@pytest.mark.parametrize("missing", ["v.class_embd", "v.blk.1.ls2.weight", "mm.model.mlp.3.bias"])
def test_missing_tensors_are_named(missing: str, folders: Any, tmp_path: Path) -> None:
    whole = write_mmproj(write_chat_folder(tmp_path / "chat", folders("small")[0]), tmp_path / "whole.gguf", {})
    cut = copy_without(tmp_path / "cut.gguf", whole, missing)
    with pytest.raises(ModelFileError, match=missing):
        compute_rows(cut, [image_of("small")], "cpu")


def test_files_cannot_express_all_towers(folders: Any, tmp_path: Path) -> None:
    chat = write_chat_folder(tmp_path / "chat", folders("small")[0], ps_version="v1")
    with pytest.raises(UnsupportedModel, match=r"cannot express ps_version \(got 'v1'; allowed 'v2'\)"):
        write_mmproj(chat, tmp_path / "file.gguf", {})
