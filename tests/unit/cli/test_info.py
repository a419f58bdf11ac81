"""`spore info` of image encoders."""

import json
from pathlib import Path

import pytest

from drawn_families import ENCODERS, DrawnEncoder
from sporelm.cli.main import main

INFO = ("--backend", "reference", "--no-speed")


@pytest.mark.parametrize("encoder", ENCODERS, ids=lambda each: each.module)
def test_image_encoders_embed(encoder: DrawnEncoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = encoder.write(tmp_path / encoder.module)
    assert main(["info", str(folder), *INFO, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"]
    assert found["backend"] == "reference"
    summary = found["encoder"]
    assert (summary["family"], summary["layers"], summary["width"]) == (encoder.module, 3, 48)
    assert summary["columns"] == {"clip": 20, "siglip": 48}[encoder.module]
    assert summary["has_text"]
    assert summary["bytes"] == 4 * summary["parameters"] > 100_000
    assert main(["info", str(folder), *INFO]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "embeds pictures and texts: vectors of" in text
    assert "of weights on reference" in text
    assert "runs here" not in text


def test_an_image_encoder_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ENCODERS[0].write(tmp_path / "clip")
    values = json.loads((folder / "config.json").read_text())
    del values["text_config"]
    (folder / "config.json").write_text(json.dumps(values | {"architectures": ["CLIPVisionModelWithProjection"]}))
    assert main(["info", str(folder), *INFO]) == 0
    assert "it has no text encoder" in " ".join(capsys.readouterr().out.split())


def test_an_image_encoder_that_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ENCODERS[0].write(tmp_path / "clip")
    values = json.loads((folder / "config.json").read_text())
    values["vision_config"]["num_attention_heads"] = 5
    (folder / "config.json").write_text(json.dumps(values))
    assert main(["info", str(folder), *INFO, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["runs"]
    assert found["encoder"] is None
    assert "heads" in found["reason"]
