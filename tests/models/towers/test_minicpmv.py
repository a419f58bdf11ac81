"""MiniCPM-V against its authors' computation in PyTorch: transformers has no class of these versions.

The ViT is transformers' Idefics2VisionTransformer, which the authors' code uses or copies, told the grid of a slice or,
for version 2.5, one row of patches. The text models are transformers' Llama, Qwen2 and Qwen3. The resampler is written
here after the authors' resampler.py.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from available import BACKENDS
from close import assert_close
from mmproj_files import compute_rows, open_tower_config, write_mmproj
from sporelm import LLM
from sporelm.checkpoints import open_model
from sporelm.checkpoints.towers.open_tower import open_tower
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.gguf import GgufWriter, open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.towers.minicpmv import MinicpmvTowerConfig, grid_positions
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.output_file import OutputFile, save_models
from sporelm.vision.image_processor import cut_patches
from sporelm.vision.processors.minicpmv import PLACEHOLDER, MinicpmvProcessor, from_folder
from vision_folders import draw_picture, draw_weights, token_ids, write_vision_folder

TAGS = ("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>", "<unk>")
IDS = token_ids(TAGS)
MISSING = "transformers and torch are not installed: pip install 'sporelm[live]' compares live"
PATCH, SIDE, SLICE, QUERIES = 7, 16, 56, 5


class Tiny(NamedTuple):
    """A random model: its class and version, its text model in transformers, and what differs in its tower."""

    name: str
    version: Any
    text_class: str
    text: dict[str, Any]
    vision: dict[str, Any]
    drops_layer: bool = False

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"


TEXT: dict[str, Any] = {"vocab_size": 300, "num_hidden_layers": 2, "max_position_embeddings": 2048}
MODELS = [
    Tiny(
        "MiniCPMV",
        2.6,
        "Qwen2",
        {"hidden_size": 128, "intermediate_size": 72, "num_attention_heads": 4, "num_key_value_heads": 2},
        {"hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2, "num_attention_heads": 3},
    ),
    Tiny(
        "MiniCPMV",
        "2.5",
        "Llama",
        {"hidden_size": 256, "intermediate_size": 40, "num_attention_heads": 8, "num_key_value_heads": 4},
        {"hidden_size": 40, "intermediate_size": 88, "num_hidden_layers": 3, "num_attention_heads": 2},
    ),
    Tiny(
        "MiniCPMV",
        4.5,
        "Qwen3",
        {"hidden_size": 128, "intermediate_size": 56, "num_attention_heads": 2, "num_key_value_heads": 1}
        | {"head_dim": 48},
        {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
        drops_layer=True,
    ),
]
FIRST, ROWS_OF_ONE, SQUARE = MODELS
PROMPTS: list[tuple[str, list[tuple[int, int]]]] = [
    (f"{PLACEHOLDER}ab", [(1, 1)]),
    (f"a{PLACEHOLDER}", [(200, 3)]),
    (PLACEHOLDER, [(2, 90)]),
    (f"{PLACEHOLDER}a\n{PLACEHOLDER}bc{PLACEHOLDER}", [(150, 90), (56, 56), (16, 9)]),
    (f"ab{PLACEHOLDER}{PLACEHOLDER}c", [(60, 120), (1, 7)]),
]


@pytest.fixture(autouse=True)
def _needs_transformers() -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=MISSING)


class Reference:
    """The modules of a model, and their computation."""

    def __init__(self, tiny: Tiny) -> None:
        import torch
        import transformers
        from transformers.models.idefics2.modeling_idefics2 import Idefics2VisionConfig, Idefics2VisionTransformer

        self.tiny, width, wide = tiny, tiny.text["hidden_size"], tiny.vision["hidden_size"]
        self.text_config = getattr(transformers, f"{tiny.text_class}Config")(**TEXT, **tiny.text)
        vision = tiny.vision | {"num_hidden_layers": tiny.vision["num_hidden_layers"] - tiny.drops_layer}
        config = Idefics2VisionConfig(**vision, image_size=PATCH * SIDE, patch_size=PATCH)
        self.llm = draw_weights(getattr(transformers, f"{tiny.text_class}ForCausalLM")(self.text_config), 1)
        self.vpm = draw_weights(Idefics2VisionTransformer(config), 2)
        self.resampler: Any = torch.nn.Module()
        self.resampler.query = torch.nn.Parameter(torch.zeros(QUERIES, width))
        if wide != width:
            self.resampler.kv_proj = torch.nn.Linear(wide, width, bias=False)
        self.resampler.attn = torch.nn.MultiheadAttention(width, width // 128)
        for name in ("ln_q", "ln_kv", "ln_post"):
            setattr(self.resampler, name, torch.nn.LayerNorm(width, eps=1e-6))
        self.resampler.proj = torch.nn.Parameter(torch.zeros(width, width))
        draw_weights(self.resampler, 3)

    def rows(self, pixels: np.ndarray) -> np.ndarray:
        """The rows of a slice, pixels float32 [3, height, width]: [queries, width]."""
        import torch

        height, width = pixels.shape[1] // PATCH, pixels.shape[2] // PATCH
        with torch.no_grad():
            given = torch.tensor(pixels)[None]
            if str(self.tiny.version) == "2.5":  # the patches side by side in one row
                parts = given.reshape(1, 3, height, PATCH, width, PATCH).permute(0, 1, 3, 2, 4, 5)
                given = parts.reshape(1, 3, PATCH, height * width * PATCH)
            x = self.vpm(given).last_hidden_state[0]
            part, found = self.resampler, torch.tensor(sinusoids(height, width, self.tiny.text["hidden_size"]))
            x = part.ln_kv(part.kv_proj(x) if hasattr(part, "kv_proj") else x)
            mixed, _ = part.attn(part.ln_q(part.query)[:, None], (x + found)[:, None], x[:, None])
            rows: np.ndarray = (part.ln_post(mixed[:, 0]) @ part.proj).numpy()
        return rows

    def logits(self, ids: list[int], rows: np.ndarray) -> np.ndarray:
        """The logits of a prompt in which the rows take the places of "<unk>": [tokens, vocab]."""
        import torch

        with torch.no_grad():
            embedded = self.llm.get_input_embeddings()(torch.tensor(ids)).clone()
            embedded[[token == IDS["<unk>"] for token in ids]] = torch.tensor(rows)
            logits: np.ndarray = self.llm(inputs_embeds=embedded[None]).logits[0].numpy()
        return logits

    def save_pretrained(self, folder: Path) -> None:
        """Write config.json and tensors as the authors publish them."""
        values = {key: value for key, value in self.text_config.to_dict().items() if value is not None}
        values |= {"architectures": [self.tiny.name], "version": self.tiny.version, "model_type": "minicpmv"}
        values |= {"query_num": QUERIES, "drop_vision_last_layer": self.tiny.drops_layer, "image_size": SLICE}
        vision = self.tiny.vision | {"image_size": PATCH * SIDE, "patch_size": PATCH, "model_type": "siglip"}
        values |= {"vision_config": vision, "slice_config": {"max_slice_nums": 9, "patch_size": PATCH}}
        (folder / "config.json").write_text(json.dumps(values))
        parts = {"llm": self.llm, "vpm": self.vpm, "resampler": self.resampler}
        tensors = {
            f"{front}.{name}": value.detach().numpy()
            for front, part in parts.items()
            for name, value in part.state_dict().items()
        }
        save_file(tensors, folder / "model.safetensors")


def sinusoids(height: int, width: int, dim: int) -> np.ndarray:
    """Positions of patches, in float64: sines and cosines of the column, then of the row; 10000 ** (-i / (dim / 4))."""
    y, x = np.divmod(np.arange(height * width), width)
    angles = [place[:, None] / 10000.0 ** (np.arange(dim // 4) / (dim // 4)) for place in (x, y)]
    parts = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.concatenate(parts, axis=1).astype(np.float32)


@cache
def make_reference(index: int) -> Reference:
    return Reference(MODELS[index])


def reference_of(tiny: Tiny) -> Reference:
    return make_reference(MODELS.index(tiny))


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    """Writes a model with its processor, once."""
    written: dict[str, Path] = {}

    def write(tiny: Tiny) -> Path:
        if str(tiny) not in written:
            settings: dict[str, Any] = {
                "max_slice_nums": 9,
                "scale_resolution": SLICE,
                "patch_size": PATCH,
                "version": 2.6,
            }
            settings |= {"image_feature_size": QUERIES, "use_image_id": tiny is not ROWS_OF_ONE}
            settings |= {"norm_mean": [0.4, 0.5, 0.6], "norm_std": [0.5, 0.6, 0.5]}
            place, files = tmp_path_factory.mktemp(str(tiny)), {"preprocessor_config.json": settings}
            written[str(tiny)] = write_vision_folder(place, reference_of(tiny), TAGS, PLACEHOLDER, files)
        return written[str(tiny)]

    return write


def processor_of(folder: Path) -> MinicpmvProcessor:
    return from_folder(folder, open_tower_config(folder), None)


def as_pixels(image: ImageInput) -> np.ndarray:
    """The pixels of a slice, from its patches: [3, height, width]."""
    ((_, height, width),) = image.grids
    parts = image.patches.reshape(height, width, 3, PATCH, PATCH).transpose(2, 0, 3, 1, 4)
    return np.ascontiguousarray(parts.reshape(3, height * PATCH, width * PATCH))


def draw_slices() -> list[np.ndarray]:
    shapes = [(8, 8), (3, 20), (1, 1), (25, 2)]
    return [
        np.random.default_rng(number).normal(size=(3, height * PATCH, width * PATCH)).astype(np.float32)
        for number, (height, width) in enumerate(shapes)
    ]


def as_input(slices: list[np.ndarray]) -> ImageInput:
    grids = tuple((1, each.shape[1] // PATCH, each.shape[2] // PATCH) for each in slices)
    return ImageInput(np.concatenate([cut_patches(each, PATCH) for each in slices]), grids, QUERIES * len(slices))


@pytest.mark.parametrize("tiny", MODELS, ids=str)
def test_logits_are_those_of_the_authors(tiny: Tiny, folder_of: Callable[[Tiny], Path]) -> None:
    """A picture of one pixel, extreme ratios, several pictures, pictures first and last, and side by side."""
    from tokenizers import Tokenizer

    folder, reference = folder_of(tiny), reference_of(tiny)
    processor, tokenizer = processor_of(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    with LLM(folder, backend="cpu", threads=1) as llm:
        for text, sizes in PROMPTS:
            pictures = [draw_picture(*size, seed=number) for number, size in enumerate(sizes)]
            given = llm.prompt_with_images(text, pictures)
            processed = [processor.process(each) for each in pictures]
            for number, each in enumerate(processed):
                text = text.replace(PLACEHOLDER, processor.text_in_prompt(each, number), 1)
            rows = [reference.rows(as_pixels(image)) for each in processed for image in each.images]
            wanted = reference.logits(tokenizer.encode(text).ids, np.concatenate(rows))
            assert_close(llm.logits(given) / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "planned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("tiny", MODELS, ids=str)
def test_rows_are_those_of_the_authors(
    tiny: Tiny, backend: str, eager: bool, folder_of: Callable[[Tiny], Path]
) -> None:
    slices = draw_slices()
    wanted = np.concatenate([reference_of(tiny).rows(each) for each in slices])
    found = compute_rows(folder_of(tiny), [as_input(slices)], backend, eager=eager)
    assert_close(found / np.ptp(wanted), wanted / np.ptp(wanted), "logits")


def test_rows_do_not_depend_on_pieces(folder_of: Callable[[Tiny], Path]) -> None:
    slices = draw_slices()
    whole = compute_rows(folder_of(FIRST), [as_input(slices)], "cpu", eager=False)
    alone = compute_rows(folder_of(FIRST), [as_input([each]) for each in slices], "cpu", eager=False, piece=32)
    assert_close(alone, whole, "exact")


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (70, 70), (1, 1000)])
def test_positions_of_keys(height: int, width: int) -> None:
    assert_close(grid_positions(height, width, 256), sinusoids(height, width, 256), "logits")


def test_pictures_of_a_prompt_are_numbered(folder_of: Callable[[Tiny], Path]) -> None:
    """A template that does not write pictures gets each on a line of its own, in front of the text as in the authors'
    `chat`."""
    with LLM(folder_of(FIRST), backend="cpu", threads=1) as llm:
        parts = [{"type": "image", "image": draw_picture(9, 9, number)} for number in range(2)]
        content = [*parts, {"type": "text", "text": "hi"}]
        ids: Any = llm.chat_ids(llm.render([{"role": "user", "content": content}]))
        opening, closing = IDS["<image_id>"], IDS["</image_id>"]
        numbers = [ids[place + 1] for place, token in enumerate(ids) if token == opening and ids[place + 2] == closing]
        alphabet = json.loads((folder_of(FIRST) / "tokenizer.json").read_text())["model"]["vocab"]
        assert numbers == [alphabet["0"], alphabet["1"]]
        assert [len(image.image.patches) for image in ids.images] == [64, 64]


def write_like_llama_cpp(folder: Path, path: Path, tiny: Tiny, number: int) -> Path:
    """Write an mmproj file with gguf-py, as minicpmv-convert-image-encoder-to-gguf.py does, in F32."""
    import gguf

    vision, writer = tiny.vision, gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_text_encoder", False)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_minicpmv_projector", True)
    writer.add_file_type(0)
    writer.add_string("clip.projector_type", "resampler")
    writer.add_int32("clip.minicpmv_version", number)
    writer.add_uint32("clip.vision.image_size", SLICE)
    writer.add_uint32("clip.vision.patch_size", PATCH)
    writer.add_uint32("clip.vision.embedding_length", vision["hidden_size"])
    writer.add_uint32("clip.vision.feed_forward_length", vision["intermediate_size"])
    writer.add_uint32("clip.vision.projection_dim", 0)
    writer.add_uint32("clip.vision.attention.head_count", vision["num_attention_heads"])
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_uint32("clip.vision.block_count", vision["num_hidden_layers"])
    writer.add_uint32("clip.minicpmv_query_num", QUERIES)
    writer.add_array("clip.vision.image_mean", [0.4, 0.5, 0.6])
    writer.add_array("clip.vision.image_std", [0.5, 0.6, 0.5])
    writer.add_bool("clip.use_gelu", True)
    for name, values in load_file(folder / "model.safetensors").items():
        for stored, each in rename_like_llama_cpp(name, values).items():
            writer.add_tensor(stored, np.ascontiguousarray(each))
    writer.add_tensor("resampler.pos_embed_k", sinusoids(70, 70, tiny.text["hidden_size"]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rename_like_llama_cpp(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """The converter's tensors of a tensor of a folder; the matrices of feed-forward blocks get each other's names."""
    if name == "resampler.proj":
        return {"resampler.proj.weight": values.T}
    if ".in_proj_" in name:
        return {
            f"resampler.attn.{part}.{name.rpartition('_')[2]}": each
            for part, each in zip("qkv", np.split(values, 3), strict=True)
        }
    if name.startswith("resampler."):
        return {name.replace("_proj", ""): values}
    if not name.startswith("vpm."):
        return {}
    for old, new in (
        ("vpm.", "v."),
        ("encoder.layers", "blk"),
        ("embeddings.", ""),
        ("_proj", ""),
        ("self_attn.", "attn_"),
        ("layer_norm", "ln"),
        ("layernorm", "ln"),
        ("mlp.fc1", "ffn_down"),
        ("mlp.fc2", "ffn_up"),
        ("embedding", "embd"),
    ):
        name = name.replace(old, new)
    return {name: values}


def write_ours(folder: Path, path: Path) -> Path:
    return write_mmproj(folder, path, processor_of(folder).settings.metadata())


@pytest.mark.parametrize(("tiny", "number"), [(FIRST, 3), (ROWS_OF_ONE, 2)], ids=["2.6", "2.5"])
def test_mmproj_of_llama_cpp(tiny: Tiny, number: int, folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf-py is not installed")
    folder, images = folder_of(tiny), [as_input(draw_slices())]
    theirs = write_like_llama_cpp(folder, tmp_path / "theirs.gguf", tiny, number)
    ours = write_ours(folder, tmp_path / "ours.gguf")
    wanted = compute_rows(folder, images)
    for path in (theirs, ours):
        assert_close(compute_rows(path, images), wanted, "exact")
        assert replace(open_tower_config(path), eps=1e-6) == open_tower_config(folder)
    files = [open_gguf(path) for path in (theirs, ours)]
    assert files[0].tensors.keys() == files[1].tensors.keys()
    tables = [file.tensor("resampler.pos_embed_k").dequantize() for file in files]
    assert_close(tables[1], tables[0], "logits")
    left_out = {"clip.has_text_encoder", "general.file_type", "general.type", "clip.vision.projection_dim"}
    metadata = [{key: as_plain(file.metadata[key]) for key in file.metadata.keys() - left_out} for file in files]
    assert metadata[0] == metadata[1]


def as_plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


@pytest.mark.parametrize("tiny", [FIRST, ROWS_OF_ONE], ids=str)
def test_text_and_mmproj_files_give_the_logits_of_the_folder(
    tiny: Tiny, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    file, folder, picture = tmp_path / "text.gguf", folder_of(tiny), draw_picture(150, 90)
    save_models([OutputFile(file, from_hf(folder).model)])
    mmproj, found = write_ours(folder, tmp_path / "mmproj.gguf"), []
    for path, tower in ((folder, None), (file, mmproj)):
        with LLM(path, backend="cpu", threads=1, mmproj=tower) as llm:
            found.append(llm.logits(llm.prompt_with_images(f"a{PLACEHOLDER}b", [picture])))
    assert_close(found[1], found[0], "f32")


def test_audio_parts_of_minicpm_o_are_left_out(folder_of: Callable[[Tiny], Path], tmp_path: Path) -> None:
    source = folder_of(FIRST)
    values = json.loads((source / "config.json").read_text()) | {
        "architectures": ["MiniCPMO"],
        "model_type": "minicpmo",
    }
    (tmp_path / "config.json").write_text(json.dumps({**values, "audio_config": {"d_model": 3}, "tts_config": {}}))
    extra = ("apm.conv1.weight", "tts.emb_text.weight", "audio_projection_layer.linear1.bias", "resampler.pos_embed")
    tensors = load_file(source / "model.safetensors") | dict.fromkeys(extra, np.ones((2, 3), np.float32))
    save_file(tensors, tmp_path / "model.safetensors")
    images = [as_input(draw_slices())]
    assert_close(compute_rows(tmp_path, images), compute_rows(source, images), "exact")
    config = open_tower_config(tmp_path)
    assert isinstance(config, MinicpmvTowerConfig)
    assert config.version == 4
    text = open_model(tmp_path)
    assert text.config.width == FIRST.text["hidden_size"]
    text.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "version of MiniCPMV is not supported .got '2.0'; allowed 2.5, 2.6, 4.0, 4.5"),
        ({"version": None}, "version of MiniCPMV is not supported .got None"),
        ({"version": float("inf")}, "version of MiniCPMV is not supported"),
        ({"architectures": ["MiniCPMO"], "version": 4.0}, "version of MiniCPMO is not supported .got 4.0"),
        ({"query_num": 0}, "query_num is 0"),
        ({"hidden_size": 100}, "resampler's width is not supported .got 100; allowed multiples of 128"),
        ({"vision_config": {"model_type": "clip"}}, "model_type is not supported"),
        ({"vision_config": {"num_hidden_layers": 1}, "drop_vision_last_layer": True}, "leaves no layer"),
    ],
)
def test_unusable_folders(
    changes: dict[str, Any], message: str, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    values = json.loads((folder_of(FIRST) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, **changes}))
    (tmp_path / "model.safetensors").write_bytes((folder_of(FIRST) / "model.safetensors").read_bytes())
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("clip.minicpmv_version", 1, "clip.minicpmv_version is not supported .got 1"),
        ("clip.minicpmv_version", "x" * 500, "clip.minicpmv_version is not supported"),
        ("clip.minicpmv_version", None, "clip.minicpmv_version is not supported .got None"),
        ("clip.minicpmv_query_num", 6, "clip.minicpmv_query_num is 6"),
        ("clip.minicpmv_query_num", 4, "resampler.query has 5 rows"),
        ("clip.vision.patch_size", -1, "patch_size is -1"),
        ("clip.vision.attention.head_count", 7, "must be whole heads"),
    ],
)
def test_hostile_metadata(
    key: str, value: Any, message: str, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    file = open_gguf(write_ours(folder_of(FIRST), tmp_path / "mmproj.gguf"))
    writer = GgufWriter(tmp_path / "changed.gguf")
    for name, old in file.metadata.items():
        if name != key or value is not None:
            writer.add(name, value if name == key else as_plain(old))
    for name in file.tensors:
        writer.add_tensor(name, file.tensor(name))
    writer.write()
    file.close()
    with pytest.raises((ModelFileError, UnsupportedModel), match=message):
        open_tower(tmp_path / "changed.gguf")


@pytest.mark.parametrize("changed", ["resampler.query", "v.position_embd.weight"])
@pytest.mark.parametrize("shape", [None, (3,), (3, 100)])
def test_hostile_shapes(
    changed: str, shape: tuple[int, ...] | None, folder_of: Callable[[Tiny], Path], tmp_path: Path
) -> None:
    file = open_gguf(write_ours(folder_of(FIRST), tmp_path / "mmproj.gguf"))
    writer = GgufWriter(tmp_path / "changed.gguf")
    for name, old in file.metadata.items():
        writer.add(name, as_plain(old))
    for name in file.tensors:
        if name != changed:
            writer.add_tensor(name, file.tensor(name))
        elif shape is not None:
            writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write()
    file.close()
    with pytest.raises((ModelFileError, UnsupportedModel)):
        compute_rows(tmp_path / "changed.gguf", [as_input(draw_slices())])
