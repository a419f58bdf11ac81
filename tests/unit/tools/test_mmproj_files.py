"""mmproj files made of Hugging Face folders, quantized, and turned back into folders."""

import json
from pathlib import Path

import numpy as np
import pytest

from llava_models import CLIP, LLAMA, SIGLIP, VIT, Tiny, draw_pixels, write_tiny
from mmproj_files import compute_rows, open_tower_config
from qwen_vision import FAMILIES, draw_image, tiny_model, write_folder
from sporelm import LLM
from sporelm.cli.main import main
from sporelm.errors import ModelNotFound, RequestError, UnsupportedModel, UsageError
from sporelm.files.gguf import open_gguf
from sporelm.models.tower_inputs import ImageInput
from sporelm.models.vit_tower import VitConfig
from sporelm.tools.hf.mmproj_from_hf import mmproj_from_hf
from sporelm.tools.hf.to_hf import HfFolder
from sporelm.tools.hf.vision_to_hf import add_tower
from sporelm.vision.fixed_size import tile_input
from vision_folders import draw_picture

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
PINPOINTS = [[28, 56], [56, 28], [56, 56]]
NEXT = LLAVA._replace(
    name="next", family="LlavaNext", outer={"image_token_id": 258, "image_grid_pinpoints": PINPOINTS},
    settings={**CLIP_SETTINGS, "image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": PINPOINTS},
)  # fmt: skip
GEMMA_TOKENS = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
GEMMA = SIGLIP_LLAVA._replace(
    name="gemma3", family="Gemma3", tokens=GEMMA_TOKENS,
    text={**LLAMA, "model_type": "gemma3_text", "head_dim": 20, "sliding_window": 64, "query_pre_attn_scalar": 20},
    outer={"boi_token_index": 258, "image_token_index": 259, "eoi_token_index": 260, "mm_tokens_per_image": 4},
    processor={"image_seq_length": 4},
)  # fmt: skip
TINY = (LLAVA, SIGLIP_LLAVA, NEXT, GEMMA)
CASES = (*(each.name for each in TINY), *FAMILIES)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("folders")
    found = {each.name: write_tiny(each, base / each.name, next(iter(each.tokens.values()))) for each in TINY}
    return found | {family: write_folder(base / family, tiny_model(family, 0)) for family in FAMILIES}


def draw_input(folder: Path) -> ImageInput:
    config = open_tower_config(folder)
    if isinstance(config, VitConfig):
        return tile_input(draw_pixels(LLAVA, 1)[0], config, config.grid**2 // config.merge**2)
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
    assert types["v.patch_embd.weight"] == types["v.blk.1.attn_out.weight"] == "F16"
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


@pytest.mark.parametrize("case", CASES)
def test_verify_knows_the_tensors_of_a_tower(
    case: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mmproj = convert(folders[case], tmp_path / "mmproj.gguf", "f16")
    capsys.readouterr()
    assert main(["gguf", "verify", str(mmproj)]) == 0
    assert "architecture" not in capsys.readouterr().out
    part = tmp_path / "part.gguf"
    assert main(["gguf", "convert", str(mmproj), "-x", "filter-tensor:!v.blk.1.ln2.weight", "-o", str(part)]) == 0
    assert main(["gguf", "verify", str(part)]) == 1
    assert "v.blk.1.ln2.weight: is missing" in capsys.readouterr().out


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


@pytest.mark.parametrize("case", CASES)
def test_a_model_and_its_mmproj_file_become_the_folder_again(
    case: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, back = folders[case], tmp_path / "back"
    mmproj, text = convert(folder, tmp_path / "mmproj.gguf", "auto"), tmp_path / "text.gguf"
    assert main(["gguf", "from-hf", str(folder), "-o", str(text)]) == 0
    capsys.readouterr()
    assert main(["gguf", "to-hf", str(text), "--mmproj", str(mmproj), "-o", str(back)]) == 0
    assert "has no token" not in capsys.readouterr().err
    before, after = read_tensors(folder), read_tensors(back)
    assert after.keys() <= before.keys(), "the others are not read: layers behind the feature"
    tolerance = 1e-6 if case == "gemma3" else 0.0  # one is added to the weights of its norms, and subtracted again
    for name in after:
        np.testing.assert_allclose(after[name], before[name], rtol=0, atol=tolerance, err_msg=name)
    assert sum("vis" in name for name in after) > 20
    picture = draw_picture(28, 28)  # which no processor has to pad or to crop
    logits = []
    for path, more in ((folder, None), (back, None), (text, mmproj)):
        with LLM(path, mmproj=more, backend="reference", kv="f32", max_context=256) as llm:
            logits.append(llm.logits(llm.prompt_with_images("Hi", [picture])))
    for found in logits[1:]:
        np.testing.assert_allclose(found, logits[0], rtol=0, atol=100 * tolerance)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """The parameters that transformers reads from a folder, by its names; buffers and what is initialized are left
    out."""
    import torch
    import transformers

    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert all("post_layernorm" in name for name in report["missing_keys"])
    names = {name for name, _ in model.named_parameters()} - set(report["missing_keys"])
    return {name: tensor.numpy() for name, tensor in model.state_dict().items() if name in names}


def test_the_processor_of_a_written_folder_is_the_files(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = folders["next"]
    mmproj, text = convert(folder, tmp_path / "mmproj.gguf", "auto"), tmp_path / "text.gguf"
    assert main(["gguf", "from-hf", str(folder), "-o", str(text)]) == 0
    assert main(["gguf", "to-hf", str(text), "--mmproj", str(mmproj), "-o", str(tmp_path / "back")]) == 0
    for name in ("preprocessor_config.json", "processor_config.json"):
        values = json.loads((tmp_path / "back" / name).read_text())
        assert values["image_token" if "pre" not in name else "image_grid_pinpoints"] in ("<image>", PINPOINTS)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (config["image_token_index"], config["vision_config"]["model_type"]) == (258, "clip_vision_model")


def test_towers_of_other_models_and_other_options_are_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mmproj, text = convert(folders["clip"], tmp_path / "mmproj.gguf", "auto"), tmp_path / "text.gguf"
    assert main(["gguf", "from-hf", str(folders["qwen3vl"]), "-o", str(tmp_path / "qwen.gguf")]) == 0
    assert main(["gguf", "from-hf", str(folders["clip"]), "-o", str(text)]) == 0
    out = ["-o", str(tmp_path / "back")]
    capsys.readouterr()
    for words, code, reason in (
        (["--mmproj", str(text)], 1, "not an mmproj file"),
        (["--mmproj", str(mmproj), "--vocab-only"], 2, "--vocab-only writes no vision tower"),
        (["--mmproj", str(tmp_path / "none.gguf")], 1, "none.gguf"),
        (["--mmproj", str(folders["clip"])], 1, "not a file"),
    ):
        assert main(["gguf", "to-hf", str(text), *words, *out]) == code
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_a_tower_of_another_width_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    mmproj = convert(folders["clip"], tmp_path / "mmproj.gguf", "auto")
    text = HfFolder({"config.json": json.dumps({"hidden_size": 41})}, (), ())
    with pytest.raises(RequestError, match=r"a vision tower of another model .its rows have 40 values; the model's 41"):
        add_tower(text, mmproj)
