"""`spore run` and `spore chat` with pictures, over a tiny Qwen2-VL: as a folder, and as a model with an mmproj file."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from qwen_vision import IDS, IMAGE_PAD, tiny_model, write_folder
from sporelm.cli.main import main
from sporelm.cli.serve import make_parser, parse_config
from sporelm.serve.model_pool.model_pool import ModelPool
from vision_folders import draw_picture

pytest.importorskip("torch", reason="makes a model of transformers")
pytest.importorskip("transformers", reason="makes a model of transformers")

OPTIONS = ("--backend", "reference", "--max-tokens", "4", "--temp", "0", "--kv", "f32", "--max-context", "256")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("qwen"), tiny_model("qwen2vl", 0))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    paths = [tmp_path_factory.mktemp("pictures") / name for name in ("a.png", "b.png")]
    for number, path in enumerate(paths):
        Image.fromarray(draw_picture(40 + 30 * number, 50, number)).save(path)
    return [str(path) for path in paths]


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["run", *words, *OPTIONS, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_run_puts_pictures_at_placeholders_or_in_front(
    folder: Path, pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (str(folder), "--image", pictures[0], "--image", pictures[1])
    front = run_json(capsys, *words, "-p", "Hi")
    rows = [each["rows"] for each in front["images"]]
    assert [each["file"] for each in front["images"]] == pictures
    assert front["prompt_token_ids"].count(IDS[IMAGE_PAD]) == sum(rows) > 2
    assert front["tower_s"] > 0
    middle = run_json(capsys, *words, "-p", f"Hi{IMAGE_PAD}and{IMAGE_PAD}")
    assert middle["prompt_token_ids"][:2] == [ord("H") - 33, ord("i") - 33]
    chat = run_json(capsys, *words, "-p", "Hi", "--chat-template", "default")
    assert chat["prompt_token_ids"].count(IDS[IMAGE_PAD]) == sum(rows)
    assert "images" not in run_json(capsys, str(folder), "-p", "Hi")


def test_run_refuses_in_one_line(
    folder: Path, pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("words")
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(Path(pictures[0]).read_bytes()[:60])
    words = [str(folder), "-p", "Hi", *OPTIONS]
    for image, reason in (
        (tmp_path / "none.png", "cannot read"), (text, "text.jpg: image: not a supported picture"),
        (damaged, "damaged.png: image: the PNG file is damaged"),
    ):  # fmt: skip
        assert main(["run", *words, "--image", str(image)]) == 1
        assert reason in one_error(capsys)
    assert main(["run", str(folder), "-p", IMAGE_PAD, *OPTIONS, "--image", pictures[0], "--image", pictures[1]]) == 1
    assert "do not match the pictures (got 1 for 2). Write one for each" in one_error(capsys)
    assert main(["run", *words, "--mmproj", "none.gguf"]) == 1
    assert "has a vision tower of its own" in one_error(capsys)
    for image, reason in (("", "an empty path"), ("https://a.org/b.png", "addresses are not opened")):
        assert main(["run", *words, "--image", image]) == 1
        assert reason in one_error(capsys)


def one_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line on stderr, without the progress bar."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("spore: ")]
    assert len(lines) == 1, lines
    return lines[0]


def test_a_chat_through_a_pipe_shows_pictures(
    folder: Path,
    pictures: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    saved = tmp_path / "talk.session"
    lines = ("What is it?", f"/image {pictures[1]}", "And this?", "/fork", f"/save {saved}", f"/load {saved}", "More?")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "/list", ""])))
    assert main(["chat", str(folder), *OPTIONS, "--image", pictures[0]]) == 0
    out, err = capsys.readouterr()
    assert f"with the next message:\n1  {pictures[0]}, " in err
    assert f"with the next message:\n1  {pictures[1]}, " in out
    assert "* 3  3 turns  [1 picture] What is it?" in out
    new = [int(line.partition(" | ")[2].split()[0]) for line in err.splitlines() if "new in the prompt" in line]
    assert len(new) == 3
    assert new[2] < 30, "the woken conversation computes its own turn only"


@pytest.fixture(scope="module")
def files(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A text model and its mmproj file."""
    base = tmp_path_factory.mktemp("files")
    text, mmproj = str(base / "model.gguf"), str(base / "model-mmproj.gguf")
    assert main(["gguf", "from-hf", str(folder), "-o", text]) == 0
    assert main(["gguf", "from-hf", str(folder), "--mmproj", "-o", mmproj]) == 0
    return text, mmproj


def test_run_with_an_mmproj_file_gives_the_answer_of_the_folder(
    folder: Path, files: tuple[str, str], pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--image", pictures[0], "-p", "Hi")
    expected = run_json(capsys, str(folder), *words)
    found = run_json(capsys, files[0], "--mmproj", files[1], *words)
    assert found["prompt_token_ids"] == expected["prompt_token_ids"]
    assert found["token_ids"] == expected["token_ids"]


def test_a_model_that_does_not_see_names_the_file_beside_it(
    files: tuple[str, str], pictures: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["run", files[0], "--image", pictures[0], "-p", "Hi", *OPTIONS]) == 1
    assert f"does not see. Set --mmproj to {files[1]}, which lies beside it" in one_error(capsys)


def test_misplaced_mmproj_files_are_named(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for words in (["run", files[0], "-p", "Hi", *OPTIONS], ["info", files[0], *INFO]):
        assert main([*words, "--mmproj", "none.gguf"]) == 1
        assert "mmproj: no such file (got 'none.gguf')" in one_error(capsys)
    assert main(["run", files[1], "-p", "Hi", *OPTIONS]) == 1
    assert "an mmproj file, which holds only the vision tower" in (error := one_error(capsys))
    assert "this one as --mmproj" in error


INFO = ("--backend", "reference", "--no-speed")


def test_info_says_what_a_model_sees(folder: Path, files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["info", str(folder), *INFO, "--image-size", "36x24", "--json"]) == 0
    vision = json.loads(capsys.readouterr().out)["vision"]
    assert (vision["family"], vision["layers"], vision["width"], vision["patch"]) == ("qwen2vl", 3, 48, 6)
    assert vision["pictures"][0] == {"width": 224, "height": 224, "tokens": 36}
    assert vision["pictures"][4] == {"width": 36, "height": 24, "tokens": 6}
    assert vision["bytes"] == 4 * vision["parameters"] > 100_000
    assert vision["is_fitting"]
    assert main(["info", files[0], "--mmproj", files[1], *INFO, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vision"] == {
        **vision, "path": files[1], "pictures": vision["pictures"][:4]
    }  # fmt: skip
    assert main(["info", files[0], *INFO]) == 0
    assert f"no, without --mmproj {files[1]}, which lies beside it" in " ".join(capsys.readouterr().out.split())
    assert main(["info", files[0], *INFO, "--image-size", "36x24"]) == 0
    assert "--image-size is ignored: the model has no vision tower" in one_error(capsys)
    assert main(["info", files[0], "--mmproj", files[1], *INFO]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "sees Qwen2-VL (qwen2vl), compared with transformers" in text
    assert "3 layers, width 48, patches of 6x6" in text
    assert "224x224 36" in text


def test_info_refuses_impossible_sizes_and_two_towers(
    folder: Path, files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for size in ("0x3", "3", "3x", "-3x3", "100000x1", "1x1x1", "３x3"):
        assert main(["info", str(folder), *INFO, "--image-size", size]) == 2
    capsys.readouterr()
    assert main(["info", str(folder), *INFO, "--image-size", "9000x3"]) == 1
    assert "aspect ratio is too extreme" in capsys.readouterr().err
    assert main(["info", str(folder), *INFO, "--mmproj", files[1]]) == 1
    assert "has a vision tower of its own" in capsys.readouterr().err


def test_doctor_lists_models_that_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--models", "--json"]) == 0
    vision = {row["family"]: row for row in json.loads(capsys.readouterr().out)["vision"]}
    assert vision["qwen2vl"]["names"] == ["Qwen2VLForConditionalGeneration", "qwen2vl_merger"]
    assert all(row["vouched"] for row in vision.values())  # old name: a key of the JSON output
    assert main(["doctor", "--models"]) == 0
    _, _, text = capsys.readouterr().out.partition("models that see:")
    assert "llava_next" in text
    assert "compared with transformers" in text


def test_serve_loads_the_tower_of_the_model_that_it_is_given_for(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, mmproj = files
    words = ["--model", f"blind={text}", "--model", f"eyes={text}", "--mmproj", f"eyes={mmproj}"]
    config = parse_config(make_parser().parse_args([*words, "--backend", "reference", "--max-context", "128"]))
    assert [spec.mmproj for spec in config.models] == [None, mmproj]
    pool = ModelPool(config)
    for spec in config.models:
        async_llm = pool._open_async_llm(spec, None)
        assert async_llm.llm.can_see == (spec.name == "eyes")
        asyncio.run(async_llm.close())
    assert main(["serve", "--model", f"eyes={text}", "--mmproj", str(tmp_path / "none.gguf"), "--port", "0"]) == 1
    assert "none.gguf" in capsys.readouterr().err
