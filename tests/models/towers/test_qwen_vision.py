"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL with pictures, against transformers: rows of the tower, logits, generated tokens,
and the same from mmproj files."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from available import open_available
from qwen_vision import (
    CLASSES,
    FAMILIES,
    IDS,
    IMAGE_PAD,
    MEAN,
    PLACEHOLDER,
    STD,
    draw_image,
    expected_rows,
    tiny_model,
    write_folder,
)
from sporelm import LLM, SamplingParams
from sporelm.checkpoints.loader import ModelSource, load_parameters
from sporelm.checkpoints.tensor_mapping import TensorMapping
from sporelm.checkpoints.towers.open_tower import open_tower, tower_gguf_schema, tower_hf_schema
from sporelm.engine.tower_runner import TowerRunner
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.models.tower_config import TowerConfig
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.tower_registry import build_tower
from sporelm.ops.paged_attention import PAGE
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.processor_registry import open_processor
from vision_folders import draw_picture

pytest.importorskip("torch", reason="torch is not installed: pip install 'sporelm[live]' compares live")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'sporelm[live]' compares live")

ROW_TOLERANCE = 1e-5  # of the range of a tower's rows; logits have 1e-4
LOGIT_TOLERANCE = 1e-4
CONFIGS = [(family, number) for family in FAMILIES for number in range(2)]
# A prompt, and the sizes (width, height) of its pictures: of one pixel, very long, several, first and last.
PROMPTS = [
    (f"Look: {PLACEHOLDER} and say.", [(1, 1)]),
    (f"{IMAGE_PAD}What?", [(300, 2)]),
    (f"a{PLACEHOLDER}{PLACEHOLDER}b{PLACEHOLDER}", [(64, 40), (9, 33), (31, 60)]),
    (f"The end {IMAGE_PAD}", [(20, 77)]),
    ("only text", []),
]
Models = Callable[..., tuple[Any, Path]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Makes a tiny model and writes its folder, once."""
    made: dict[Any, tuple[Any, Path]] = {}

    def make(family: str, number: int, *, has_experts: bool = False) -> tuple[Any, Path]:
        key = family, number, has_experts
        if key not in made:
            model = tiny_model(family, number, has_experts=has_experts)
            made[key] = model, write_folder(tmp_path_factory.mktemp("qwen") / "model", model)
        return made[key]

    return make


@pytest.fixture(scope="module")
def cpu() -> Iterator[Any]:
    backend = open_available("cpu", threads=1)
    yield backend
    backend.close()


def compute_rows(
    path: Path, backend: Any, images: Sequence[ImageInput], *, eager: bool = False, piece: int = 0
) -> list[np.ndarray]:
    """The rows of images by the tower of a folder or an mmproj file."""
    with closing(open_tower(path)) as source:
        assert isinstance(source.config, TowerConfig)
        tower = build_tower(source.config)
        weights: dict[str, Any] = dict(load_parameters(source, tower.params(), backend))
    weights |= {name: backend.tensor(table) for name, table in tower.tables().items()}
    runner = TowerRunner(tower, weights, backend, eager=eager)
    runner.max_piece_rows = piece or runner.max_piece_rows
    found = [runner.compute(image) for image in images]
    runner.close()
    return found


def tower_images(path: Path) -> list[ImageInput]:
    """Grids of one square, long ones, one of several windows, and one of two frames."""
    with closing(open_tower(path)) as source:
        config = source.config
    assert isinstance(config, TowerConfig)
    squares = ((1, 1, 1), (1, 1, 9), (1, 7, 1), (1, 3, 5), (2, 2, 3))
    grids = [(time, height * config.merge, width * config.merge) for time, height, width in squares]
    return [draw_image(config, grid, seed) for seed, grid in enumerate(grids)]


@pytest.mark.parametrize(("family", "number"), CONFIGS)
def test_rows_of_the_tower(family: str, number: int, models: Models, cpu: Any) -> None:
    """Equal to transformers' within rounding; the same bits planned, eager, and in short pieces."""
    model, folder = models(family, number)
    images = tower_images(folder)
    planned, eager = (compute_rows(folder, cpu, images, eager=each) for each in (False, True))
    pieces = compute_rows(folder, cpu, images, piece=16)
    for image, rows, *others in zip(images, planned, eager, pieces, strict=True):
        wanted = expected_rows(model, image)
        assert rows.shape == wanted.shape
        assert np.abs(rows - wanted).max() <= ROW_TOLERANCE * np.ptp(wanted)
        for other in others:
            np.testing.assert_array_equal(rows, other)


def their_inputs(folder: Path, ids: Sequence[int], pictures: Sequence[np.ndarray]) -> dict[str, Any]:
    """The inputs of transformers for a prompt of ours; pixels by its own processor."""
    import torch
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokens = torch.tensor([[min(token, IDS[IMAGE_PAD]) if token > 10_000 else token for token in ids]])
    if not pictures:
        return {"input_ids": tokens}
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    pixels = processor([Image.fromarray(each) for each in pictures], return_tensors="pt")
    return {"input_ids": tokens, "mm_token_type_ids": (tokens == IDS[IMAGE_PAD]).int(), **pixels}


def their_logits(model: Any, inputs: dict[str, Any]) -> np.ndarray:
    import torch

    model.model.rope_deltas = None
    with torch.no_grad():
        return np.asarray(model(**inputs).logits[0])


def pictures_of(sizes: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    return [draw_picture(width, height, seed) for seed, (width, height) in enumerate(sizes)]


@pytest.mark.parametrize(
    ("family", "number", "has_experts"),
    [
        *((*each, False) for each in CONFIGS),
        ("qwen3vl", 0, True),
        pytest.param("qwen3vl", 1, True, marks=pytest.mark.all),
    ],
)
def test_logits(family: str, number: int, has_experts: bool, models: Models) -> None:
    model, folder = models(family, number, has_experts=has_experts)
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = pictures_of(sizes)
            ids = llm.prompt_with_images(text, pictures)
            wanted = their_logits(model, their_inputs(folder, ids, pictures))
            assert np.abs(llm.logits(ids) - wanted).max() <= LOGIT_TOLERANCE * np.ptp(wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_generated_tokens(family: str, models: Models) -> None:
    """The text behind a picture goes on from the greatest of its positions."""
    import torch

    model, folder = models(family, 0)
    text, sizes = PROMPTS[2]
    pictures = pictures_of(sizes)
    with LLM(folder, backend="cpu", threads=1) as llm:
        ids = llm.prompt_with_images(text, pictures)
        (found,) = llm.generate(ids, SamplingParams(max_tokens=8, temperature=0))
    inputs = their_inputs(folder, ids, pictures)
    model.model.rope_deltas = None
    with torch.no_grad():
        all_ids = model.generate(
            **inputs, attention_mask=torch.ones_like(inputs["input_ids"]), max_new_tokens=8, do_sample=False
        )
    assert list(found.token_ids) == all_ids[0, len(ids) : len(ids) + len(found.token_ids)].tolist()
    assert len(found.token_ids) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_short_steps_and_company_change_no_bit(family: str, models: Models) -> None:
    """Pictures are cut between steps, run beside a text, and come from the cache in another request."""
    _, folder = models(family, 0)
    text, sizes = PROMPTS[2]
    params = SamplingParams(max_tokens=4, temperature=0, logprobs=2)
    with (
        LLM(folder, backend="cpu", threads=1) as whole,
        LLM(folder, backend="cpu", threads=1, token_budget=8) as cut,
    ):
        words = whole.prompt_ids("Some words.")
        ids = whole.prompt_with_images(text + "Some words." * 5, pictures_of(sizes))
        np.testing.assert_array_equal(whole.logits(ids), cut.logits(ids))
        alone = [whole.generate(each, params)[0] for each in (ids, words)]
        together = cut.generate([ids, words], params)
        again = whole.generate(ids, params)[0]
        assert again.cached_tokens == PAGE < len(ids)
        for one, other in zip([*alone, alone[0]], [*together, again], strict=True):
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


# mmproj files: names as llama.cpp's conversion/qwenvl.py and conversion/qwen3vl.py write them, for each stored name.
LAYER_PARTS = {"norm1": "ln1", "norm2": "ln2", "attn.proj": "attn_out", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
LAYER_PARTS |= {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
LAYER_PARTS |= {"mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down", "attn.qkv": "attn_qkv"}
MERGER_PARTS = {"ln_q": "v.post_ln", "norm": "v.post_ln", "mlp.0": "mm.0", "mlp.2": "mm.2"}
MERGER_PARTS |= {"linear_fc1": "mm.0", "linear_fc2": "mm.2"}
LEVEL_PARTS = {"norm": "norm", "linear_fc1": "fc1", "linear_fc2": "fc2"}


def converted(family: str, name: str, values: np.ndarray, levels: Sequence[int]) -> dict[str, np.ndarray]:
    """The tensors that the converter makes of one in a folder, whose name begins with "visual."."""
    stem, _, part = name.removeprefix("visual.").rpartition(".")
    if name == "visual.patch_embed.proj.weight":
        return {"v.patch_embd.weight": values[:, :, 0], "v.patch_embd.weight.1": values[:, :, 1]}
    if stem in ("patch_embed.proj", "pos_embed"):
        return {f"v.{'patch' if stem.startswith('patch') else 'position'}_embd.{part}": values}
    if stem.startswith("merger."):
        return {f"{MERGER_PARTS[stem.removeprefix('merger.')]}.{part}": values}
    kind, number, inner = stem.split(".", 2)
    if kind == "deepstack_merger_list":
        return {f"v.deepstack.{levels[int(number)]}.{LEVEL_PARTS[inner]}.{part}": values}
    front = f"v.blk.{number}."
    if inner == "attn.qkv" and family != "qwen3vl":
        return {f"{front}attn_{each}.{part}": third for each, third in zip("qkv", np.split(values, 3), strict=True)}
    return {f"{front}{LAYER_PARTS[inner]}.{part}": values}


def write_as_converter(path: Path, family: str, model: Any) -> None:
    """Write an mmproj file by gguf-py, as llama.cpp's converter does."""
    import gguf

    vision, text = model.config.vision_config, model.config.text_config
    projectors = {"qwen2vl": "qwen2vl_merger", "qwen25vl": "qwen2.5vl_merger", "qwen3vl": "qwen3vl_merger"}
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("general.type", "mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(projectors[family])
    writer.add_vision_projection_dim(text.hidden_size)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.embed_dim if family == "qwen2vl" else vision.hidden_size)
    # The converter takes the wrong key of Qwen2-VL's config.json for the width of feed-forward blocks.
    writer.add_vision_feed_forward_length(vision.hidden_size if family == "qwen2vl" else vision.intermediate_size)
    writer.add_vision_block_count(vision.depth)
    writer.add_vision_head_count(vision.num_heads)
    writer.add_vision_image_mean(MEAN)
    writer.add_vision_image_std(STD)
    writer.add_vision_attention_layernorm_eps(1e-6)
    levels: list[int] = []
    if family == "qwen25vl":
        writer.add_vision_use_silu(True)
        writer.add_vision_n_wa_pattern(vision.fullatt_block_indexes[0] + 1)
        writer.add_uint32("clip.vision.window_size", vision.window_size)  # only files with 112 lack it
    if family == "qwen3vl":
        levels = list(vision.deepstack_visual_indexes)
        writer.add_vision_use_gelu(True)
        writer.add_vision_spatial_merge_size(vision.spatial_merge_size)
        writer.add_vision_image_size(int(vision.num_position_embeddings**0.5 * vision.patch_size))
        writer.add_vision_is_deepstack_layers([layer in levels for layer in range(vision.depth)])
    else:
        writer.add_vision_image_size(560)
    for name, tensor in model.model.visual.state_dict().items():
        for stored, values in converted(family, f"visual.{name}", tensor.numpy(), levels).items():
            writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mmproj(path: Path, source: ModelSource, **changes: Any) -> None:
    """Write the tower of a folder as an mmproj file, by our schema. `changes` of the metadata; None: left out."""
    config = source.config
    assert isinstance(config, TowerConfig)
    params = build_tower(config).params()
    weights = {
        mapped.param.name: mapped.load(source.files.tensor(mapped.sources[0])).dequantize()
        for mapped in source.schema.resolve(params, config, source.files.tensors).tensors
    }
    schema = tower_gguf_schema(config.model)
    writer = GgufWriter(path)
    settings = open_processor(source, lambda text: True).settings  # type: ignore[attr-defined]
    metadata = schema.metadata_from_config(config) | settings.metadata()
    for key, (kind, value) in metadata.items():
        new = changes.get(key.rpartition(".")[2], value)
        if new is not None:
            writer.add(key, new, kind if key.rpartition(".")[2] not in changes else None)
    for name, values in schema.resolve(params, config).save(weights).items():
        writer.add_tensor(name, values)
    writer.write()


@pytest.mark.parametrize("family", FAMILIES)
def test_mmproj_files(family: str, models: Models, cpu: Any, tmp_path: Path) -> None:
    """Ours and the converter's give the rows of the folder, bit for bit, and hold the same tensors."""
    pytest.importorskip("gguf", reason="gguf-py is not installed: pip install 'sporelm[live]' compares live")
    model, folder = models(family, 0)
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "theirs.gguf"
    with closing(open_tower(folder)) as source:
        write_mmproj(ours, source)
        config = source.config
    write_as_converter(theirs, family, model)
    images = tower_images(folder)
    wanted = compute_rows(folder, cpu, images)
    for path in (ours, theirs):
        for rows, expected in zip(compute_rows(path, cpu, images), wanted, strict=True):
            np.testing.assert_array_equal(rows, expected)
    with closing(open_gguf(ours)) as left, closing(open_gguf(theirs)) as right, closing(open_tower(ours)) as again:
        assert {name: info.shape for name, info in left.tensors.items()} == {
            name: info.shape for name, info in right.tensors.items()
        }
        lacking = set(right.metadata) - set(left.metadata)
        assert not {key for key in lacking if key.startswith("clip.")}
        differing = {
            key for key in set(left.metadata) & set(right.metadata) if differs(left.metadata[key], right.metadata[key])
        }
        assert differing <= {"clip.vision.feed_forward_length"}
        for name in ("width", "ffn", "layers", "heads", "patch", "merge", "out_width", "deepstack", "full_layers"):
            assert getattr(again.config, name) == getattr(config, name)


def differs(left: Any, right: Any) -> bool:
    return not np.array_equal(np.asarray(left), np.asarray(right))


@pytest.mark.parametrize("family", ["qwen2vl", "qwen25vl"])
def test_mmproj_files_with_swapped_names(family: str, models: Models, cpu: Any, tmp_path: Path) -> None:
    """Older converters call the two matrices of a feed-forward block by each other's name, and say 0 for its width."""
    _, folder = models(family, 0)
    path, swapped = tmp_path / "mmproj.gguf", tmp_path / "swapped.gguf"
    with closing(open_tower(folder)) as source:
        write_mmproj(path, source)
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    with closing(open_gguf(path)) as file:
        writer = GgufWriter(swapped)
        for key, value in file.metadata.items():
            writer.add(key, 0 if key.endswith("feed_forward_length") else value)
        for name in file.tensors:
            front, _, part = name.rpartition(".")
            stem, _, last = front.rpartition(".")
            writer.add_tensor(f"{stem}.{names.get(last, last)}.{part}" if stem else name, file.tensor(name))
        writer.write()
    images = tower_images(folder)
    for rows, wanted in zip(*(compute_rows(each, cpu, images) for each in (swapped, path)), strict=True):
        np.testing.assert_array_equal(rows, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_and_mmproj(family: str, models: Models, tmp_path: Path) -> None:
    """A text model in GGUF, F32 and quantized, and its mmproj file: the logits of the folder, and nearly so."""
    _, folder = models(family, 1)
    mmproj = tmp_path / "mmproj.gguf"
    with closing(open_tower(folder)) as source:
        write_mmproj(mmproj, source)
    text, sizes = PROMPTS[2]
    pictures = pictures_of(sizes)
    logits, ids = {}, {}
    for name in ("folder", "f32", "q8_0"):
        path = folder
        if name != "folder":
            path = tmp_path / f"{name}.gguf"
            save_models([OutputFile(path, from_hf(folder, type_name=name).model)])
        with LLM(path, backend="cpu", threads=1, mmproj=None if name == "folder" else mmproj) as llm:
            ids[name] = llm.prompt_with_images(text, pictures)
            logits[name] = llm.logits(ids[name])
        if name == "q8_0":
            with LLM(path, backend="cpu", threads=1, mmproj=mmproj, eager=True) as llm:
                np.testing.assert_array_equal(llm.logits(ids[name]), logits[name])
    assert [token for token in ids["f32"] if token < 1000] == [token for token in ids["folder"] if token < 1000]
    np.testing.assert_array_equal(logits["f32"], logits["folder"])
    assert 0 < np.abs(logits["q8_0"] - logits["folder"]).max() < 0.05 * np.ptp(logits["folder"])


def test_context_limits_name_the_picture(models: Models) -> None:
    from sporelm.errors import ContextOverflow

    _, folder = models("qwen2vl", 0)
    with (
        LLM(folder, backend="cpu", threads=1, max_context=16) as llm,
        pytest.raises(ContextOverflow, match=r"image 1 of 1.*max_context"),
    ):
        llm.prompt_with_images(PLACEHOLDER, pictures_of([(80, 80)]))


def changed_folder(folder: Path, target: Path, vision: dict[str, Any]) -> Path:
    """A copy of a folder with some values of the vision part changed; None: left out."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    values = json.loads((folder / "config.json").read_text())
    values["vision_config"] = {
        key: value for key, value in (values["vision_config"] | vision).items() if value is not None
    }
    (target / "config.json").write_text(json.dumps(values))
    return target


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        ("qwen2vl", {"depth": 10**9}, ModelFileError, "depth"),
        ("qwen2vl", {"num_heads": 5}, UnsupportedModel, "multiple of 4"),
        ("qwen2vl", {"temporal_patch_size": 3}, UnsupportedModel, "temporal_patch_size"),
        ("qwen2vl", {"hidden_act": "relu"}, UnsupportedModel, "hidden_act"),
        ("qwen2vl", {"mlp_ratio": float("1e9")}, ModelFileError, "mlp_ratio"),
        ("qwen2vl", {"patch_size": 0}, ModelFileError, "patch_size"),
        ("qwen2vl", {"spatial_merge_size": 4}, ModelFileError, "must be"),
        ("qwen2vl", {"hidden_size": 36}, ModelFileError, "must be"),
        ("qwen25vl", {"window_size": 7}, ModelFileError, "window_size"),
        ("qwen25vl", {"fullatt_block_indexes": [1, 1]}, ModelFileError, "fullatt_block_indexes"),
        ("qwen25vl", {"fullatt_block_indexes": "all"}, ModelFileError, "fullatt_block_indexes"),
        ("qwen3vl", {"deepstack_visual_indexes": [0, 7]}, ModelFileError, "deepstack_visual_indexes"),
        ("qwen3vl", {"deepstack_visual_indexes": [0]}, ModelFileError, "holds tensors"),
        ("qwen3vl", {"num_position_embeddings": 24}, ModelFileError, "square"),
        ("qwen3vl", {"num_position_embeddings": 16}, ModelFileError, "must be"),
    ],
)
def test_bad_folders(
    family: str,
    changes: dict[str, Any],
    error: type[ModelError],
    message: str,
    models: Models,
    tmp_path: Path,
    cpu: Any,
) -> None:
    _, folder = models(family, 0)
    with pytest.raises(error, match=message):
        compute_rows(changed_folder(folder, tmp_path / "changed", changes), cpu, [])


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen2vl", {"embedding_length": None}, "embedding_length"),
        ("qwen2vl", {"embedding_length": 1 << 30}, "embedding_length"),
        ("qwen2vl", {"head_count": 5}, "whole heads"),
        ("qwen2vl", {"head_count": 8}, "multiple of 4"),
        ("qwen2vl", {"patch_size": "6"}, "patch_size"),
        ("qwen2vl", {"spatial_merge_size": 99}, "spatial_merge_size"),
        ("qwen2vl", {"projection_dim": 41}, "must be"),
        ("qwen2vl", {"block_count": 2}, "holds tensors"),
        ("qwen2vl", {"block_count": 4}, "lacks"),
        ("qwen25vl", {"n_wa_pattern": None}, "n_wa_pattern"),
        ("qwen25vl", {"n_wa_pattern": -1}, "n_wa_pattern"),
        ("qwen25vl", {"window_size": 3}, "window_size"),
        ("qwen3vl", {"is_deepstack_layers": [True]}, "is_deepstack_layers"),
        ("qwen3vl", {"is_deepstack_layers": 3}, "is_deepstack_layers"),
        ("qwen3vl", {"is_deepstack_layers": [0, 1, 2]}, "is_deepstack_layers"),
        ("qwen3vl", {"image_size": 36}, "must be"),
    ],
)
def test_bad_mmproj_files(
    family: str, changes: dict[str, Any], message: str, models: Models, tmp_path: Path, cpu: Any
) -> None:
    _, folder = models(family, 0)
    with closing(open_tower(folder)) as source:
        write_mmproj(tmp_path / "mmproj.gguf", source, **changes)
    with pytest.raises(ModelError, match=message):
        compute_rows(tmp_path / "mmproj.gguf", cpu, [])


def test_what_mmproj_files_cannot_express(models: Models, tmp_path: Path) -> None:
    """Windows at irregular layers, and another rotary base."""
    odd = changed_folder(models("qwen25vl", 1)[1], tmp_path / "odd", {"fullatt_block_indexes": [0, 3]})
    with closing(open_tower(odd)) as source, pytest.raises(UnsupportedModel, match="every n-th layer"):
        write_mmproj(tmp_path / "mmproj.gguf", source)
    rope = {"rope_parameters": {"rope_type": "axial", "rope_theta": 100.0}}
    other = changed_folder(models("qwen2vl", 0)[1], tmp_path / "changed", rope)
    with closing(open_tower(other)) as source, pytest.raises(UnsupportedModel, match="rope_theta"):
        write_mmproj(tmp_path / "mmproj.gguf", source)


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3vlmoe"])
def test_saved_weights(family: str, models: Models) -> None:
    """The weights of a tower are saved as the folder holds them."""
    kind = "qwen3vl" if family == "qwen3vlmoe" else family
    _, folder = models(kind, 0, has_experts=family != kind)
    schema = tower_hf_schema(kind)
    with closing(open_tower(folder)) as source:
        assert (
            f"{CLASSES[family]}ForConditionalGeneration"
            in json.loads((folder / "config.json").read_text())["architectures"]
        )
        assert isinstance(source.config, TowerConfig)
        params = build_tower(source.config).params()
        mapping: TensorMapping = source.schema.resolve(params, source.config, source.files.tensors)
        weights = {
            each.param.name: each.load(source.files.tensor(each.sources[0])).dequantize() for each in mapping.tensors
        }
        saved = schema.resolve(params, source.config).save(weights)
        stored = {name: name.removeprefix("model.") for name in source.files.tensors if "visual." in name}
        assert set(saved) == set(stored.values())
        for name, short in stored.items():
            np.testing.assert_array_equal(saved[short], source.files.tensor(name).dequantize())
