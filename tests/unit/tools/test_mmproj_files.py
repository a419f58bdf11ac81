"""mmproj files made of Hugging Face folders, quantized, and turned back into folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from llava_models import CLIP, LLAMA, SIGLIP, VIT, Tiny, draw_pixels, write_tiny
from mmproj_files import compute_rows, open_tower_config
from qwen_vision import FAMILIES, draw_image, tiny_model, write_folder
from sporelm.cli.main import main
from sporelm.errors import ModelNotFound, UnsupportedModel, UsageError
from sporelm.files.gguf import open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.vit_tower import VitConfig
from sporelm.tools.hf.mmproj_from_hf import mmproj_from_hf
from sporelm.vision.fixed_size import tile_input

pytest.importorskip("torch", reason="makes models of transformers")
pytest.importorskip("transformers", reason="makes models of transformers")

SIZE = {"height": 28, "width": 28}
CLIP_SETTINGS = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": SIZE}
LLAVA = Tiny(
    "clip", "Llava", {"image_token": "<image>"},
    {**CLIP, **VIT, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 28,
     "patch_size": 7},
    LLAMA, {"image_token_index": 258}, CLIP_SETTINGS, {"patch_size": 7, "vision_feature_select_strategy": "default"},
)  # fmt: skip
SIGLIP_LLAVA = LLAVA._replace(
    name="siglip", vision={**LLAVA.vision, **SIGLIP},
    settings={"image_processor_type": "SiglipImageProcessor", "size": SIZE},
    outer={"image_token_index": 258, "vision_feature_select_strategy": "full", "vision_feature_layer": -1},
)  # fmt: skip
CASES = ("clip", "siglip", *FAMILIES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("folders")
    found = {each.name: write_tiny(each, base / each.name, "<image>\n") for each in (LLAVA, SIGLIP_LLAVA)}
    return found | {family: write_folder(base / family, tiny_model(family, 0)) for family in FAMILIES}


def draw_input(folder: Path) -> ImageInput:
    config = open_tower_config(folder)
    if isinstance(config, VitConfig):
        return tile_input(draw_pixels(LLAVA, 1)[0], config, config.grid**2)
    return draw_image(config, (1, 2 * config.merge, 3 * config.merge))


def distance(path: Path, folder: Path) -> float:
    """The greatest difference between the rows of a file and those of a folder, relative to the largest row."""
    image = draw_input(folder)
    expected = compute_rows(folder, [image])
    return float(np.abs(compute_rows(path, [image]) - expected).max() / np.abs(expected).max())


def convert(folder: Path, path: Path, type_name: str) -> Path:
    assert main(["gguf", "from-hf", str(folder), "--mmproj", "--type", type_name, "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_file_computes_what_its_folder_does(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders[case]
    assert distance(convert(folder, tmp_path / "auto.gguf", "auto"), folder) == 0
    half = convert(folder, tmp_path / "half.gguf", "f16")
    assert distance(half, folder) < 2e-3
    with open_gguf(half) as gguf:
        types = {name: info.type_name for name, info in gguf.tensors.items()}
        assert gguf.metadata["general.architecture"] == "clip"
        assert gguf.metadata["general.type"] == "mmproj"
        assert len(gguf.metadata["clip.vision.image_mean"]) == 3
    assert types["v.patch_embd.weight"] == types["mm.2.weight"] == "F16"
    assert {types[name] for name in types if "position_embd" in name or name.endswith(".bias")} == {"F32"}


@pytest.mark.parametrize("case", CASES)
def test_matrices_of_layers_and_of_the_projector_are_quantized(
    case: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders[case]
    half = convert(folder, tmp_path / "half.gguf", "f16")
    small = tmp_path / "small.gguf"
    assert main(["gguf", "quantize", str(half), "--type", "Q8_0", "-o", str(small)]) == 0
    assert distance(small, folder) < 3e-2
    straight = convert(folder, tmp_path / "straight.gguf", "q8_0")
    assert distance(straight, folder) < 3e-2
    with open_gguf(half) as before, open_gguf(small) as after, open_gguf(straight) as other:
        assert dict(before.metadata).keys() == dict(after.metadata).keys()
        quantized = {name for name, info in after.tensors.items() if info.type_name == "Q8_0"}
        narrow = {name for name, info in before.tensors.items() if info.shape[-1] % 32}
        exact = {name for name, info in before.tensors.items() if info.type_name == "F32" or "patch_embd" in name}
        assert quantized == before.tensors.keys() - exact - narrow
        assert quantized
        assert {name for name, info in other.tensors.items() if info.type_name == "Q8_0"} == quantized
        assert other.tensors["v.patch_embd.weight"].type_name == "F32"
    capsys.readouterr()
    assert main(["gguf", "quantize", str(small), "--type", "Q4_0", "-o", str(tmp_path / "twice.gguf")]) == 1
    assert "quantized already" in capsys.readouterr().err


def test_one_tensor_can_be_given_another_type(folders: dict[str, Path], tmp_path: Path) -> None:
    half, small = convert(folders["clip"], tmp_path / "half.gguf", "f16"), tmp_path / "small.gguf"
    words = ["--type", "Q4_0", "--tensor", "v.blk.1.*=Q8_0", "-o", str(small)]
    assert main(["gguf", "quantize", str(half), *words]) == 0
    with open_gguf(small) as gguf:
        types = {name: info.type_name for name, info in gguf.tensors.items()}
    assert (types["v.blk.0.attn_q.weight"], types["v.blk.1.attn_q.weight"]) == ("Q4_0", "Q8_0")
    assert types["mm.2.weight"] == "F16", "rows of 40 values are not whole blocks"


def test_settings_that_a_file_cannot_hold_are_noted(folders: dict[str, Path]) -> None:
    (note,) = mmproj_from_hf(folders["clip"]).notes
    assert "size, crop, fit_color have no keys" in note
    assert mmproj_from_hf(folders["qwen2vl"]).notes == ()


def test_folders_without_a_tower_and_other_options_are_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(UnsupportedModel, match="its vision tower is not supported"):
        mmproj_from_hf(tmp_path)
    with pytest.raises(ModelNotFound, match="is not a folder"):
        mmproj_from_hf(tmp_path / "config.json")
    with pytest.raises(UsageError, match="not a supported type"):
        mmproj_from_hf(folders["clip"], type_name="q4_k")
    assert main(["gguf", "from-hf", str(folders["clip"]), "--mmproj", "--vocab-only"]) == 2
    assert "--mmproj writes no tokenizer" in capsys.readouterr().err
