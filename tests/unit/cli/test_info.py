"""`spore info` of image encoders, and of models on several ranks."""

import json
from pathlib import Path

import pytest

from drawn_families import ENCODERS, DrawnEncoder
from sporelm.cli.main import main
from tiny_files import write_folder
from tiny_models import SUPER

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


def test_what_each_rank_would_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "super", SUPER)
    words = ["info", str(folder), *INFO, "--context", "64"]
    assert main([*words, "--tp", "2", "--pp", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    ranks = found["ranks"]
    assert (ranks["tp"], ranks["pp"], ranks["ep"], ranks["runs"], ranks["reason"]) == (2, 2, False, True, None)
    assert ranks["whole"] == found["memory"]["weights"]
    assert [each["stage"] for each in ranks["members"]] == [0, 0, 1, 1]
    assert 2 * sum(each["kv"] for each in ranks["members"]) >= 2 * found["memory"]["kv"] > 0
    for each in ranks["members"]:
        assert each["kv_heads"] == [{"rank": 1, "model": 2}]
        assert each["replicated"] == sum(each["replicated_weights"].values()) < each["weights"] < ranks["whole"]
    assert main([*words, "--tp", "2", "--pp", "2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "ranks 4 ranks with" in text
    assert "KV heads 1 of 2" in text
    assert "replicated on each rank of a stage" in text
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] is None


def test_why_a_model_has_no_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "super", SUPER)
    assert main(["info", str(folder), *INFO, "--pp", "50"]) == 0
    assert "ranks no: --pp: more stages than layers (got 50;" in " ".join(capsys.readouterr().out.split())
    assert main(["info", str(folder), *INFO, "--tp", "2", "--tp-shares", "1"]) == 2
    assert "--tp-shares: must be one positive number for each rank" in capsys.readouterr().err
