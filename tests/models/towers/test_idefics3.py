"""Idefics3 and SmolVLM against transformers, from folders and from mmproj files."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from available import BACKENDS
from close import assert_close
from mmproj_files import compute_rows, open_tower_config, write_mmproj
from sporelm import LLM
from sporelm.checkpoints.towers.open_tower import open_tower
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.idefics3 import bucket_positions, merge_order
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.idefics3 import from_folder
from vision_folders import draw_picture, draw_weights, token_ids, write_vision_folder

TAGS = ("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>", "<row_1_col_1>")
IDS = token_ids(TAGS)
MISSING = "transformers and torch are not installed: pip install 'sporelm[live]' compares live"


class Tiny(NamedTuple):
    """A random model: its classes in transformers, the shape of its tower, and the settings of its processor."""

    family: str
    vision: dict[str, Any]
    text: dict[str, Any]
    merge: int
    edge: int
    changes: dict[str, Any] = {}

    @property
    def settings(self) -> dict[str, Any]:
        tile = self.vision["image_size"]
        return {"size": {"longest_edge": self.edge}, "max_image_size": {"longest_edge": tile}, **self.changes}

    @property
    def tile_rows(self) -> int:
        return (self.vision["image_size"] // self.vision["patch_size"] // self.merge) ** 2


TEXT = {"model_type": "llama", "vocab_size": 300, "pad_token_id": 0, "max_position_embeddings": 1024}
MODELS = [
    Tiny(
        "Idefics3",
        {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 3}
        | {"image_size": 42, "patch_size": 7},
        TEXT
        | {"hidden_size": 40, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"num_key_value_heads": 1},
        3,
        120,
    ),
    Tiny(
        "SmolVLM",
        {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 45, "patch_size": 11, "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        TEXT
        | {"hidden_size": 56, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 7}
        | {"num_key_value_heads": 7, "tie_word_embeddings": True},
        2,
        90,
        {"image_mean": [0.4, 0.5, 0.6], "resample": 2},
    ),
]
PROMPTS: list[tuple[str, list[tuple[int, int]]]] = [
    ("<image>ab", [(1, 1)]),
    ("a<image>", [(200, 3)]),
    ("<image>", [(2, 90)]),
    ("<image>a\n<image>bc<image>", [(50, 30), (42, 42), (16, 9)]),
    ("ab<image><image>c", [(90, 91), (1, 7)]),
]


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=MISSING)


@cache
def make_model(name: str) -> Any:
    """The random model of a family in transformers."""
    import transformers

    tiny = next(each for each in MODELS if each.family == name)
    config = getattr(transformers, f"{name}Config")(
        vision_config=tiny.vision,
        text_config=tiny.text,
        scale_factor=tiny.merge,
        image_token_id=IDS["<image>"],
        tie_word_embeddings=tiny.text.get("tie_word_embeddings", False),
    )
    return draw_weights(getattr(transformers, f"{name}ForConditionalGeneration")(config))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    """Writes a model with its processor, once."""
    written: dict[str, Path] = {}

    def write(tiny: Tiny) -> Path:
        if tiny.family not in written:
            files = {
                "preprocessor_config.json": tiny.settings,
                "processor_config.json": {"image_seq_len": tiny.tile_rows},
            }
            place = tmp_path_factory.mktemp(tiny.family)
            written[tiny.family] = write_vision_folder(place, make_model(tiny.family), TAGS, "<image>", files)
        return written[tiny.family]

    return write


def their_logits(tiny: Tiny, folder: Path, text: str, pictures: list[np.ndarray]) -> np.ndarray:
    """The logits of a prompt by transformers' processor and model: [tokens, vocab]."""
    import torch
    from PIL import Image
    from transformers import PreTrainedTokenizerFast
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    processor = Idefics3Processor(Idefics3ImageProcessorPil(**tiny.settings), tokenizer, image_seq_len=tiny.tile_rows)
    inputs = processor(text=text, images=[[Image.fromarray(each) for each in pictures]], return_tensors="pt")
    with torch.no_grad():
        logits: np.ndarray = make_model(tiny.family)(**inputs).logits[0].numpy()
    return logits


def draw_tiles(tiny: Tiny, count: int) -> list[np.ndarray]:
    """Tiles as the tower reads them, pixels [channels, height, width]."""
    side = tiny.vision["image_size"]
    return [np.random.default_rng(number).normal(size=(3, side, side)).astype(np.float32) for number in range(count)]


def as_input(tiny: Tiny, tiles: list[np.ndarray]) -> ImageInput:
    patch = tiny.vision["patch_size"]
    side = tiny.vision["image_size"] // patch
    patches = [cut_patches(each[:, : side * patch, : side * patch], patch) for each in tiles]
    return ImageInput(np.concatenate(patches), ((1, side, side),) * len(tiles), tiny.tile_rows * len(tiles))


def their_rows(tiny: Tiny, tiles: list[np.ndarray]) -> np.ndarray:
    """The rows of tiles by transformers: [rows, width]."""
    import torch

    found = make_model(tiny.family).get_image_features(pixel_values=torch.tensor(np.stack(tiles))[None]).pooler_output
    return np.concatenate([each.detach().numpy() for each in found])


@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.family)
def test_logits_are_those_of_transformers(tiny: Tiny, folder_of: Callable[[Tiny], Path]) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last, and side by side."""
    folder = folder_of(tiny)
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = [draw_picture(*size, seed=number) for number, size in enumerate(sizes)]
            wanted = their_logits(tiny, folder, text, pictures)
            found = llm.logits(llm.prompt_with_images(text, pictures))
            assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tiny", MODELS, ids=lambda tiny: tiny.family)
def test_rows_are_those_of_transformers(
    tiny: Tiny, backend: str, eager: bool, folder_of: Callable[[Tiny], Path]
) -> None:
    tiles = draw_tiles(tiny, 3)
    wanted = their_rows(tiny, tiles)
    found = compute_rows(folder_of(tiny), [as_input(tiny, tiles)], backend, eager=eager)
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


def test_rows_do_not_depend_on_pieces(folder_of: Callable[[Tiny], Path]) -> None:
    tiny = MODELS[0]
    tiles = draw_tiles(tiny, 3)
    whole = compute_rows(folder_of(tiny), [as_input(tiny, tiles)], "cpu", eager=False)
    alone = compute_rows(folder_of(tiny), [as_input(tiny, [each]) for each in tiles], "cpu", eager=False, piece=32)
    assert_close(alone, whole, "exact")


def test_positions_of_a_smaller_tile(folder_of: Callable[[Tiny], Path]) -> None:
    """The tower takes tiles with fewer patches than it has positions for, as transformers does."""
    tiny = MODELS[0]
    tiles = [np.random.default_rng(5).normal(size=(3, 21, 21)).astype(np.float32)]
    image = ImageInput(cut_patches(tiles[0], 7), ((1, 3, 3),), 1)
    wanted = their_rows(tiny, tiles)
    assert_close(compute_rows(folder_of(tiny), [image]) / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("side", [26, 27, 32])
def test_positions_are_those_of_torch(side: int) -> None:
    """For the sides of all published models, and for every number of patches up to theirs."""
    import torch

    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    for count in range(1, side + 1):
        places = torch.clamp(torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor([count])), max=1.0 - 1e-6)
        wanted = torch.bucketize(places, boundaries, right=True).numpy()
        assert bucket_positions(1, count, side).tolist() == wanted.tolist()
        assert bucket_positions(count, 1, side).tolist() == (wanted * side).tolist()


def test_squares_follow_each_other() -> None:
    assert merge_order(2, 4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def write_like_llama_cpp(folder: Path, path: Path, tiny: Tiny, *, swaps_ffn: bool = False) -> Path:
    """Write an mmproj file with gguf-py, as conversion/smolvlm.py does."""
    import gguf
    import torch
    from safetensors import safe_open

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
    writer.add_vision_image_mean(tiny.settings.get("image_mean", [0.5] * 3))
    writer.add_vision_image_std([0.5] * 3)
    writer.add_clip_projector_type(gguf.VisionProjectorType.IDEFICS3)
    writer.add_vision_attention_layernorm_eps(vision.get("layer_norm_eps", 1e-6))
    writer.add_vision_projector_scale_factor(tiny.merge)
    writer.add_vision_use_gelu(True)
    writer.add_uint32("clip.vision.preproc_image_size", tiny.edge)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    with safe_open(folder / "model.safetensors", "pt") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a dict
            if "vision_model" in name or "connector" in name:
                stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
                assert stored is not None
                if swaps_ffn:
                    stored = stored.replace("ffn_up", "x").replace("ffn_down", "ffn_up").replace("x", "ffn_down")
                writer.add_tensor(stored, tensors.get_tensor(name).to(torch.float32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_ours(folder: Path, path: Path) -> Path:
    config = open_tower_config(folder)
    return write_mmproj(folder, path, from_folder(folder, config, None).settings.metadata())


@pytest.mark.parametrize("swaps_ffn", [False, True], ids=["new", "old-names"])
def test_mmproj_of_llama_cpp(swaps_ffn: bool, folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf-py is not installed")
    tiny = MODELS[0]
    path = write_like_llama_cpp(folder_of(tiny), tmp_path / "mmproj.gguf", tiny, swaps_ffn=swaps_ffn)
    images = [as_input(tiny, draw_tiles(tiny, 2))]
    assert_close(compute_rows(path, images), compute_rows(folder_of(tiny), images), "exact")
    assert replace(open_tower_config(path), eps=1e-6) == open_tower_config(folder_of(tiny))  # the file has a float32


def test_mmproj_of_ours_equals_that_of_llama_cpp(folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf-py is not installed")
    tiny = MODELS[0]
    theirs = open_gguf(write_like_llama_cpp(folder_of(tiny), tmp_path / "theirs.gguf", tiny))
    ours = open_gguf(write_ours(folder_of(tiny), tmp_path / "ours.gguf"))
    assert {name: info.shape for name, info in ours.tensors.items()} == {
        name: info.shape for name, info in theirs.tensors.items()
    }
    for name in theirs.tensors:
        assert_close(ours.tensor(name).dequantize(), theirs.tensor(name).dequantize(), "exact")
    left_out = {"general.file_type"}
    metadata = [{key: as_plain(value) for key, value in file.metadata.items()} for file in (ours, theirs)]
    assert metadata[0] == {key: value for key, value in metadata[1].items() if key not in left_out}


def as_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def test_text_and_mmproj_files_give_the_logits_of_the_folder(folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    tiny, file = MODELS[0], tmp_path / "text.gguf"
    folder = folder_of(tiny)
    save_models([OutputFile(file, from_hf(folder).model)])
    mmproj = write_ours(folder, tmp_path / "mmproj.gguf")
    picture = draw_picture(60, 40)
    found = []
    for path, tower in ((folder, None), (file, mmproj)):
        with LLM(path, backend="cpu", threads=1, mmproj=tower) as llm:
            found.append(llm.logits(llm.prompt_with_images("a<image>b", [picture])))
    assert_close(found[1], found[0], "f32")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clip.vision.projector.scale_factor", 4, "must divide the 6 patches"),
        ("clip.vision.projector.scale_factor", 0, "scale_factor is 0"),
        ("clip.vision.patch_size", 0, "patch_size is 0"),
        ("clip.vision.patch_size", 43, "image_size is 42"),
        ("clip.vision.image_size", 1 << 30, "image_size is 1073741824"),
        ("clip.vision.attention.head_count", 5, "embedding_length is 48; it must be whole heads"),
        ("clip.vision.embedding_length", 1 << 31, "embedding_length is 2147483648"),
        ("clip.vision.attention.layer_norm_epsilon", float("nan"), "layer_norm_epsilon is nan"),
        ("clip.vision.block_count", None, "block_count is missing"),
        ("clip.projector_type", "idefics9", "clip.projector_type is not supported"),
    ],
)
def test_hostile_metadata(
    key: str, value: Any, message: str, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    path = write_ours(folder_of(MODELS[0]), tmp_path / "mmproj.gguf")
    changed = change_metadata(path, tmp_path / "changed.gguf", key, value)
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(changed)


def change_metadata(path: Path, target: Path, key: str, value: Any) -> Path:
    """Copy a GGUF file with another value of a key; None: without it."""
    file, writer = open_gguf(path), GgufWriter(target)
    for name, old in file.metadata.items():
        if name != key:
            writer.add(name, as_plain(old))
        elif value is not None:
            writer.add(name, value)
    for name in file.tensors:
        writer.add_tensor(name, file.tensor(name))
    writer.write()
    file.close()
    return target


@pytest.mark.parametrize(("part", "name"), [("mm.model.fc.weight", "lacks 1"), ("v.blk.2.ln2.bias", "lacks 1")])
def test_missing_tensors(part: str, name: str, folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    file = open_gguf(write_ours(folder_of(MODELS[0]), tmp_path / "whole.gguf"))
    writer = GgufWriter(tmp_path / "part.gguf")
    for key, value in file.metadata.items():
        writer.add(key, as_plain(value))
    for each in file.tensors:
        if each != part:
            writer.add_tensor(each, file.tensor(each))
    writer.write()
    file.close()
    with pytest.raises(ModelFileError, match=name):
        compute_rows(tmp_path / "part.gguf", [as_input(MODELS[0], draw_tiles(MODELS[0], 1))])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_factor": 4}, "scale_factor is 4; it must divide the 6 patches"),
        ({"vision_config": {"hidden_act": "relu"}}, "hidden_act is not supported"),
        ({"vision_config": {"image_size": [42, 43]}}, "image_size"),
        ({"vision_config": {"num_attention_heads": 5}}, "hidden_size must be a multiple"),
    ],
)
def test_unusable_folders(
    changes: dict[str, Any], message: str, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    values = json.loads((folder_of(MODELS[0]) / "config.json").read_text())
    vision = values["vision_config"] | changes.get("vision_config", {})
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes, "vision_config": vision}))
    (tmp_path / "model.safetensors").write_bytes((folder_of(MODELS[0]) / "model.safetensors").read_bytes())
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(tmp_path)
