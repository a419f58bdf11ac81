"""`spore embed` with pictures: CLIP, SigLIP, and models that see."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_folders import MODELS
from close import assert_close
from imatrix_models import vocabulary
from sporelm import LLM
from sporelm.api.image_text_encoder import ImageTextEncoder
from sporelm.cli.main import main
from tiny_files import write_gguf
from tiny_models import LLAMA, Tiny
from vision_folders import draw_picture

MISSING = "transformers and torch are not installed: pip install 'sporelm[live]' compares live"


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=MISSING)
    make, write = MODELS["clip"]
    return write(tmp_path_factory.mktemp("clip"), make())


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.fromarray(draw_picture(50, 30)).save(path)
    return path


def test_texts_and_then_pictures(clip: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["embed", str(clip), "a cat", "dog", "--image", str(picture), "--image", str(picture), "--json"]
    assert main([*arguments, "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    with ImageTextEncoder(clip, threads=1) as encoder:
        texts, images = encoder.embed_texts(["a cat", "dog"]), encoder.embed_images([picture, draw_picture(50, 30)])
    assert found["model"] == "clip"
    assert_close(np.array(found["vectors"], np.float32), np.concatenate([texts, images]), "exact")


def test_pictures_alone(clip: Path, picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The only argument is then the model."""
    assert main(["embed", str(clip), "--image", str(picture), "--no-normalize", "--threads", "1"]) == 0
    values = np.array(capsys.readouterr().out.split(), np.float32)
    with ImageTextEncoder(clip, threads=1) as encoder:
        (wanted,) = encoder.embed_images([picture], normalize=False)
    np.testing.assert_allclose(values, wanted, rtol=1e-5)


def test_what_is_refused(clip: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(picture.read_bytes()[:60])
    cases = {
        "damaged.png: image: ": [str(clip), "--image", str(damaged)],
        "--pooling: CLIP and SigLIP have a pooling and towers of their own": [str(clip), "a", "--pooling", "mean"],
        "--prompt-name: CLIP and SigLIP": [str(clip), "a", "--prompt-name", "query"],
        "--mmproj: CLIP and SigLIP": [str(clip), "a", "--mmproj", "mmproj.gguf"],
        "text: it is too long (got 12 tokens; allowed 9)": [str(clip), "a " * 10],
        "cannot read": [str(clip), "--image", str(tmp_path / "none.png")],
    }
    for message, arguments in cases.items():
        assert main(["embed", *arguments, "--threads", "1"]) != 0
        assert message in capsys.readouterr().err


def test_a_picture_is_a_prompt_of_a_model_that_sees(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers", reason="the model's tokenizer is written with tokenizers, which is not installed")
    from drawn_vision import write_qwen2vl

    folder = write_qwen2vl(tmp_path / "qwen2vl")
    arguments = ["embed", str(folder), "a cat", "--image", str(picture), "--pooling", "mean", "--json"]
    assert main([*arguments, "--threads", "1", "--max-context", "128"]) == 0
    vectors = np.array(json.loads(capsys.readouterr().out)["vectors"], np.float32)
    with LLM(folder, threads=1, max_context=128) as llm:
        assert_close(vectors, llm.embed("a cat", images=[picture], pooling="mean"), "exact")
    assert main(["embed", str(folder), "--image", str(picture), "--threads", "1", "--max-context", "2"]) != 0
    assert "picture.png: image 1 of 1: the prompt is too long" in capsys.readouterr().err


def test_models_that_do_not_see_take_no_pictures(
    picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "blind.gguf", Tiny("blind", {**LLAMA, "vocab_size": 260}, 1), more=vocabulary())
    assert main(["embed", str(path), "--image", str(picture), "--threads", "1", "--max-context", "64"]) != 0
    assert "image: llama does not see. Load a model that does" in capsys.readouterr().err
