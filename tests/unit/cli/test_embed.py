"""`spore embed` with pictures: CLIP and SigLIP."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clip_folders import MODELS
from close import assert_close
from sporelm.api.image_text_encoder import ImageTextEncoder
from sporelm.cli.main import main
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
        "--pooling: CLIP and SigLIP have a pooling of their own": [str(clip), "a", "--pooling", "mean"],
        "--prompt-name: CLIP and SigLIP": [str(clip), "a", "--prompt-name", "query"],
        "text: it is too long (got 12 tokens; allowed 9)": [str(clip), "a " * 10],
        "cannot read": [str(clip), "--image", str(tmp_path / "none.png")],
    }
    for message, arguments in cases.items():
        assert main(["embed", *arguments, "--threads", "1"]) != 0
        assert message in capsys.readouterr().err


def test_other_models_take_no_pictures(picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    assert main(["embed", str(tmp_path), "--image", str(picture)]) != 0
    assert "--image: pictures are embedded by an image encoder" in capsys.readouterr().err
