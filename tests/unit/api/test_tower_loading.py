"""A vision tower that is loaded beside its model, and loads that fail on the way."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from drawn_families import FIRST
from drawn_vision import write_qwen2vl
from sporelm import LLM
from sporelm.api import engine_loader, tower_loading
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import ModelSource
from sporelm.cli.main import main
from sporelm.engine import Engine, Worker
from sporelm.engine.tower_runner import TowerRunner
from sporelm.errors import RequestError

pytest.importorskip("tokenizers", reason="the model's tokenizer is written with tokenizers, which is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2vl(tmp_path_factory.mktemp("vision") / "qwen2vl")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The objects that are closed from now on, in order."""
    objects: list[Any] = []
    for kind in (Engine, Worker, TowerRunner, ModelSource):

        def close(self: Any, original: Any = kind.close) -> None:
            objects.append(self)
            original(self)

        monkeypatch.setattr(kind, "close", close)
    return objects


@pytest.mark.parametrize("place", ["load", "connect", "prepare"])
def test_a_load_that_fails_leaves_nothing_open(
    folder: Path, closed: list[Any], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    towers: list[Any] = []

    def load_tower(*args: Any, **options: Any) -> Any:
        towers.append(tower_loading.load_tower(*args, **options))
        return towers[-1]

    def fail(*args: Any) -> None:
        raise RequestError("no luck")

    monkeypatch.setattr(engine_loader, "load_tower", load_tower)
    target = {
        "load": (engine_loader, "_load"),
        "connect": (tower_loading, "tower_key"),
        "prepare": (TowerRunner, "prepare"),
    }
    monkeypatch.setattr(*target[place], fail)
    # A back-end that is closed before its programs and caches warns, which is an error here.
    with pytest.raises(RequestError, match="no luck"):
        LLM(folder, threads=1, max_context=64)
    assert towers[0].source in closed
    kinds = [type(each) for each in closed]
    expected = {"load": [0, 0, 0], "connect": [1, 1, 0], "prepare": [1, 1, 1]}[place]
    assert [kinds.count(kind) for kind in (Engine, Worker, TowerRunner)] == expected


def test_the_files_of_a_tower_are_closed_once_it_is_connected(folder: Path, closed: list[Any]) -> None:
    with LLM(folder, threads=1, max_context=64) as llm:
        assert llm.image_reader is not None
        assert llm.image_reader.max_context == 64
        assert [type(each) for each in closed] == [ModelSource, ModelSource]


def test_the_file_beside_a_model_fits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files are passed over: of another width, damaged, of a language model."""
    for name in ("internvl", "qwen2vl"):
        FIRST[name].write(tmp_path / name)
        assert main(["gguf", "from-hf", str(tmp_path / name), "--mmproj", "-o", str(tmp_path / f"{name}.gguf")]) == 0
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "a-mmproj.gguf").write_bytes(b"GGUF")
    (tmp_path / "internvl.gguf").rename(folder / "b-mmproj.gguf")
    (folder / "model.gguf").touch()
    with closing(open_model(tmp_path / "qwen2vl")) as source:
        config = source.config
    assert tower_loading.find_mmproj(folder / "model.gguf", config) is None
    (tmp_path / "qwen2vl.gguf").rename(folder / "c-mmproj.gguf")
    assert tower_loading.find_mmproj(folder / "model.gguf", config) == folder / "c-mmproj.gguf"
    assert tower_loading.find_mmproj(folder, config) is None, "a folder holds its own"
    monkeypatch.chdir(tmp_path)
    assert str(tower_loading.find_mmproj(Path("models/model.gguf"), config)) == "models/c-mmproj.gguf"


def test_a_folder_without_settings_of_its_processor_is_noted(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        if file.name != "preprocessor_config.json":
            (tmp_path / file.name).symlink_to(file)
    for place, has_note in ((folder, False), (tmp_path, True)):
        with LLM(place, threads=1, max_context=64, backend="reference") as llm:
            noted = [note for note in llm.notes if "preprocessor_config.json" in note]
            assert len(noted) == has_note
    assert noted[0].endswith("preprocessor_config.json is missing: pictures are prepared with the defaults of qwen2vl")
