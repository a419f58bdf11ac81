"""Models of the hub: what an address means, and fetching from a hub on this machine, faults included."""

import errno
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import pytest

from fake_hub import FakeHub, serving
from sporelm import settings
from sporelm.errors import ModelFileError, ModelNotFound
from sporelm.files import store
from sporelm.files.store import downloads, folder_lock, hub, hub_address
from sporelm.files.store.folder_lock import lock_model_folder
from system.processes import Spore, command, environment, one_line

CONTENT = np.random.default_rng(1).bytes(1_500_000)
WEIGHTS = np.random.default_rng(3).bytes(500_000)
OTHER = np.random.default_rng(2).bytes(300_000)
SPLITS = [f"q4/m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
QUANTS = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-q8_0.gguf", "mmproj-m-f16.gguf", "imatrix.gguf"]
FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"a": 1}',
    "model.safetensors": WEIGHTS,
    "consolidated.safetensors": WEIGHTS[:-1],
    "original/model.safetensors": OTHER,
    "README.md": b"# hi",
    "pytorch_model.bin": OTHER,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store."""
    place = tmp_path / "store"
    monkeypatch.setenv("SPORE_MODEL_STORE", str(place))  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "MODEL_STORE", settings.Setting("SPORE_MODEL_STORE", lambda: "", ""))
    return place


@pytest.fixture
def fake(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A hub, which the package is pointed at."""
    constants = pytest.importorskip("huggingface_hub.constants")
    files = {
        "owner/split": {"main": {**dict.fromkeys(SPLITS, OTHER), "picture.png": b"x"}},
        "owner/quants": {"main": {name: CONTENT[: 100_000 + i] for i, name in enumerate(QUANTS)}},
        "owner/folder": {"main": FOLDER, "v1": FOLDER | {"model.safetensors": OTHER}},
        "owner/one": {"main": {"only.gguf": CONTENT, "README.md": b"# hi"}},
    }
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere/token")
    monkeypatch.setattr(downloads, "PAUSE_S", 0.0)
    with serving(FakeHub(files)) as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        yield served


def list_files(folder: Path) -> list[str]:
    """List every file in the store."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# ---- addresses


@pytest.mark.parametrize(
    "text",
    ["hf:a", "hf:a/b/c", "hf:../b", "hf:a/b:../c", "hf:a/b:", "hf:/b", "hf:a/b:/etc/x", "hf:a/b@", "hf:a/b@../x:y",
     "hf:a/b:x\n", "hf:a/b:" + "x" * 600],
)  # fmt: skip
def test_addresses_are_strict(text: str) -> None:
    with pytest.raises(ModelNotFound, match="is not an address"):
        hub_address.parse(text)


def test_address() -> None:
    found = hub_address.parse("hf:some-one/model.v1:dir/file.Q4_1.gguf")
    assert found == hub_address.Address("some-one", "model.v1", "dir/file.Q4_1.gguf")
    assert hub_address.parse("hf:a/b").file is None
    revised = hub_address.parse("hf:a/b@refs/pr/1:Q4_K_M")
    assert (revised.revision, revised.file, revised.folder_name) == ("refs/pr/1", "Q4_K_M", "b@refs%2Fpr%2F1")
    assert hub_address.address_of_folder("a", revised.folder_name).whole == "hf:a/b@refs/pr/1"
    assert hub_address.parse("hf:a/b:x", "v1").text == "hf:a/b@v1:x"
    with pytest.raises(ModelNotFound, match="give one of them"):
        hub_address.parse("hf:a/b@v2", "v1")
    with pytest.raises(ModelNotFound, match="cannot be a revision"):
        hub_address.parse("hf:a/b", "../v1")


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("Q4_K_M", "m-Q4_K_M.gguf"), ("q4_k_m", "m-Q4_K_M.gguf"), ("Q8_0", "m-q8_0.gguf"),
        ("*Q4_K_M*", "m-Q4_K_M.gguf"),
        ("m-Q4_K_S.gguf", "m-Q4_K_S.gguf"), ("*8_0.gguf", "m-q8_0.gguf"), ("mmproj-m-f16.gguf", "mmproj-m-f16.gguf"),
        ("m-[qQ]4_K_S*", "m-Q4_K_S.gguf"), ("F16", None), ("Q4_K", None), ("Q4", None), ("*Q5*", None),
    ],
)  # fmt: skip
def test_patterns_and_tags(wanted: str, file: str | None) -> None:
    assert hub_address.select_gguf(QUANTS, hub_address.parse(f"hf:a/b:{wanted}")) == file


def test_choices() -> None:
    only = hub_address.select_only_gguf
    assert only(["config.json", "model.safetensors", "x.gguf"], "hf:a/b") is None
    assert only(["README.md", "x.gguf", "mmproj-x.gguf"], "hf:a/b") == "x.gguf"
    assert only([*SPLITS, "picture.png"], "hf:a/b") == SPLITS[0]
    with pytest.raises(ModelNotFound, match=r"hf:a/b:x\.gguf"):
        only(["x.gguf", "y.gguf"], "hf:a/b")
    with pytest.raises(ModelNotFound, match=r"has 2 GGUF models"):
        only([*SPLITS, "y.gguf"], "hf:a/b")
    for halves in (SPLITS[1:], SPLITS[:2]):
        with pytest.raises(ModelNotFound, match="neither safetensors"):
            only(halves, "hf:a/b")
    with pytest.raises(ModelNotFound, match=r"matches 2 GGUF models: give one of m-Q4_K_M\.gguf, m-Q4_K_S\.gguf"):
        hub_address.select_files(QUANTS, hub_address.parse("hf:a/b:*Q4*"))
    with pytest.raises(ModelNotFound, match=r"matches no file of a/b: there are .*m-q8_0"):
        hub_address.select_files(QUANTS, hub_address.parse("hf:a/b:Q5_K_M"))


# ---- fetching


def test_without_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r"pip install .*\[hub\]"):
        store.resolve("hf:owner/name")


def test_finds_what_was_fetched(folder: Path) -> None:
    place = folder / "hf" / "owner" / "name"
    place.mkdir(parents=True)
    (place / "a-Q4_0.gguf").write_bytes(CONTENT)
    for name in ("hf:owner/name", "hf:owner/name:a-Q4_0.gguf", "hf:owner/name:Q4_0", "hf:owner/name:*q4*"):
        assert store.resolve(name) == place / "a-Q4_0.gguf"
    assert store.names() == [], "hub models are named by their address"
    (place / "config.json").write_text("{}")
    (place / ".complete").touch()
    assert store.resolve("hf:owner/name") == place


@pytest.mark.parametrize("name", ["hf:owner/split", f"hf:owner/split:{SPLITS[0]}", f"hf:owner/split:{SPLITS[2]}"])
def test_fetches_all_splits_of_a_model(folder: Path, fake: FakeHub, name: str) -> None:
    seen: list[tuple[str, int, int]] = []
    path = store.resolve(name, lambda *step: seen.append(step))
    assert path == folder / "hf" / "owner" / "split" / SPLITS[0]
    assert sorted(fake.fetched()) == SPLITS
    assert list_files(folder) == [f"hf/owner/split/{file}" for file in SPLITS], "no scratch is left"
    assert path.read_bytes() == OTHER
    assert seen[-1] == ("fetching", 3 * len(OTHER), 3 * len(OTHER))
    assert store.resolve(name) == path
    assert len(fake.fetched()) == 3, "the second time it is there"
    (path.parent / "m-00002-of-00003.gguf").unlink()
    assert store.find(name) is None, "half a model is none"
    assert store.resolve(name) == path


def test_fetches_a_folder(folder: Path, fake: FakeHub) -> None:
    path = store.pull("hf:owner/folder")
    assert list_files(path) == [".complete", "config.json", "model.safetensors", "tokenizer.json"]
    old = store.pull("hf:owner/folder", revision="v1")
    assert old == store.find("hf:owner/folder@v1") == path.with_name("folder@v1")
    assert (old / "model.safetensors").read_bytes() == OTHER
    assert (path / "model.safetensors").read_bytes() == WEIGHTS
    with pytest.raises(ModelNotFound, match="has no revision 'v2'"):
        store.pull("hf:owner/folder", revision="v2")


def test_tag_fetches_one_file(folder: Path, fake: FakeHub) -> None:
    path = store.pull("hf:owner/quants:q4_k_m")
    assert path.name == "m-Q4_K_M.gguf"
    assert fake.fetched() == ["m-Q4_K_M.gguf"]
    store.pull("hf:owner/quants:Q4_K_S")
    assert [entry.name for entry in store.entries()] == [f"hf:owner/quants:{name}" for name in QUANTS[:2]]


def test_what_was_interrupted_goes_on(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TRIES", 1)
    fake.cut["only.gguf"] = [600_000, 0, 0]
    with pytest.raises(ModelNotFound, match=r"lost after 0\.6 of 1\.5 MB.*run the command again to resume"):
        store.pull("hf:owner/one")
    assert store.find("hf:owner/one") is None
    assert [each.name for each in store.unfinished()] == ["hf:owner/one"]
    assert store.unfinished()[0].nbytes == 600_000
    fake.cut.clear()
    assert store.pull("hf:owner/one").read_bytes() == CONTENT
    assert fake.ranges_asked()[-1] == "bytes=600000-"
    assert list_files(folder) == ["hf/owner/one/only.gguf"]


def test_a_lost_connection_is_taken_up_again(folder: Path, fake: FakeHub) -> None:
    fake.cut["only.gguf"] = [1000, 300_000, 0, 5, 1]
    fake.statuses["only.gguf"] = [503, 429]
    assert store.pull("hf:owner/one").read_bytes() == CONTENT
    assert fake.ranges_asked()


def test_a_server_without_ranges_begins_again(folder: Path, fake: FakeHub) -> None:
    fake.ranges, fake.cut["only.gguf"] = False, [200_000]
    assert store.pull("hf:owner/one").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("lie", "message"),
    [(CONTENT[:-1] + b"?", "sha256 .* the hub says .* not used"), (CONTENT + b"?", "more than the 1500000 bytes")],
    ids=["changed", "long"],
)
def test_other_content_is_not_used(folder: Path, fake: FakeHub, lie: bytes, message: str) -> None:
    fake.lies["only.gguf"] = lie
    with pytest.raises(ModelFileError, match=message):
        store.pull("hf:owner/one")
    assert store.find("hf:owner/one") is None
    assert [name for name in list_files(folder) if not name.endswith("/lock")] == []
    fake.lies.clear()
    assert store.pull("hf:owner/one").read_bytes() == CONTENT


def test_small_files_are_checked_too(folder: Path, fake: FakeHub) -> None:
    fake.lies["config.json"] = b"[]"
    with pytest.raises(ModelFileError, match=r"config\.json has git sha1"):
        store.pull("hf:owner/folder")
    assert store.find("hf:owner/folder") is None


def test_what_cannot_be_checked_is_not_fetched(folder: Path, fake: FakeHub) -> None:
    fake.hashes = False
    with pytest.raises(ModelFileError, match=r"says no hash of only\.gguf"):
        store.pull("hf:owner/one")
    assert list_files(folder) == []


def test_a_file_that_is_shorter_than_said(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TRIES", 2)
    fake.lies["only.gguf"] = CONTENT[:-10]
    with pytest.raises((ModelNotFound, ModelFileError)):
        store.pull("hf:owner/one")


def test_the_token_goes_to_the_hub_alone(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.gated.add("owner/one")
    with pytest.raises(ModelNotFound, match=r"owner/one is gated \(HTTP 401\): ask for access at .*set HF_TOKEN"):
        store.pull("hf:owner/one")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelNotFound, match="does not take your token"):
        store.pull("hf:owner/one")
    monkeypatch.setenv("HF_TOKEN", fake.token)
    fake.requests.clear()
    assert store.pull("hf:owner/one").read_bytes() == CONTENT
    seen = {server: "Authorization" in headers or "authorization" in headers for server, _, headers in fake.requests}
    assert seen == {"hub": True, "cdn": False}


def test_refusals_say_what_to_do(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match=r"owner/none does not exist or is private \(HTTP 401\)"):
        store.pull("hf:owner/none")
    with pytest.raises(ModelNotFound, match=r"matches no file of owner/one: there are only\.gguf"):
        store.pull("hf:owner/one:Q4_0")
    fake.statuses["api"], fake.retry_after = [429], "300"
    with pytest.raises(ModelNotFound, match=r"rate limit is reached \(HTTP 429\): wait 300 s; a token"):
        store.pull("hf:owner/one")
    fake.statuses["api"] = [500]
    with pytest.raises(ModelNotFound, match="the hub failed"):
        store.pull("hf:owner/one")
    fake.statuses["only.gguf"] = [429]
    with pytest.raises(ModelNotFound, match=r"HTTP 429\): wait 300 s"):
        store.pull("hf:owner/one")


def test_names_of_a_hostile_hub_stay_in_the_folder(folder: Path, fake: FakeHub) -> None:
    fake.extra_names = ["\x9b31m.gguf", "\ud800.gguf", "a\u202egufg.gguf"]
    fake.extra_names += ["../x.gguf", "/etc/x.gguf", "a\\b.gguf", "C:x.gguf", "a//b.gguf", "a/../b.gguf", "\n.gguf", ""]
    assert store.pull("hf:owner/one").name == "only.gguf", "none of them counts"


def test_no_room(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: SimpleNamespace(free=hub.SPARE_BYTES + 1_499_999))
    with pytest.raises(ModelNotFound, match=r"needs 0\.00 GB more.*SPORE_MODEL_STORE"):
        store.pull("hf:owner/one")
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: SimpleNamespace(free=hub.SPARE_BYTES + 1_500_000))
    assert store.pull("hf:owner/one").is_file()


@pytest.mark.parametrize(("number", "is_kept"), [(errno.ENOSPC, False), (errno.EIO, True)], ids=["full", "broken"])
def test_a_full_disk_is_left_free(tmp_path: Path, number: int, is_kept: bool) -> None:
    class Disk:
        def write(self, data: memoryview) -> int:
            if len(data) < 8:
                raise OSError(number, "no")
            return 4

        def close(self) -> None:
            """Closed."""

    part = tmp_path / "x.part"
    part.write_bytes(b"12345678")
    with pytest.raises(OSError, match="no"):
        downloads.write_chunk(Disk(), part, b"12345678")
    assert part.exists() == is_kept


def test_one_process_at_a_time(folder: Path, fake: FakeHub) -> None:
    scratch = folder / "hf" / "owner" / ".pull-one"
    with lock_model_folder(scratch, "hf:owner/one"):
        (scratch / "x.part").write_bytes(b"abc")
        with pytest.raises(ModelNotFound, match="hf:owner/one is being downloaded by another process"):
            store.pull("hf:owner/one")
        with pytest.raises(ModelNotFound, match="being downloaded"):
            store.remove(store.plan_removal(["hf:owner/one"]))
        assert (scratch / "x.part").read_bytes() == b"abc"
    store.remove(store.plan_removal(["hf:owner/one"]))
    assert list_files(folder) == []


@pytest.mark.skipif(sys.platform == "win32", reason="a file that is open cannot be taken away here")
def test_a_folder_that_is_taken_away_is_locked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one who held it before removed it, after we had opened its lock."""
    scratch, real = folder / ".pull-one", folder_lock.take

    def late(file: BinaryIO) -> bool:
        monkeypatch.setattr(folder_lock, "take", real)
        shutil.rmtree(scratch)
        return real(file)

    monkeypatch.setattr(folder_lock, "take", late)
    with lock_model_folder(scratch, "one"):
        assert (scratch / "lock").is_file()
        with pytest.raises(ModelNotFound, match="another process"), lock_model_folder(scratch, "one"):
            raise AssertionError("held twice")
    assert not scratch.exists()


def test_another_process_was_faster(folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hub.Api.listing

    def listing(api: hub.Api) -> Any:
        monkeypatch.setattr(hub.Api, "listing", real)
        store.pull("hf:owner/one")
        fake.requests.clear()
        return real(api)

    monkeypatch.setattr(hub.Api, "listing", listing)
    assert store.pull("hf:owner/one").read_bytes() == CONTENT
    assert fake.fetched() == []


def test_parts_of_another_model_stay_and_those_of_an_older_one_go(
    folder: Path, fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TRIES", 1)
    for name in QUANTS[:2]:
        fake.cut[name] = [50_000, 0, 0]
        with pytest.raises(ModelNotFound, match="lost"):
            store.pull(f"hf:owner/quants:{name}")
    fake.cut.clear()
    fake.files["owner/quants"]["main"][QUANTS[0]] = OTHER  # published again
    assert store.pull(f"hf:owner/quants:{QUANTS[0]}").read_bytes() == OTHER
    assert store.unfinished()[0].nbytes == 50_000
    store.pull(f"hf:owner/quants:{QUANTS[1]}")
    assert fake.ranges_asked()[-1] == "bytes=50000-"
    assert store.unfinished() == []


# ---- the command


def test_pull_prints_the_path(folder: Path, fake: FakeHub, spore: Spore) -> None:
    done = spore("pull", "hf:owner/quants:q8_0", HF_ENDPOINT=fake.address, SPORE_MODEL_STORE=str(folder))
    assert (done.returncode, done.stdout.strip()) == (0, str(folder / "hf/owner/quants/m-q8_0.gguf"))
    assert one_line(done.stderr) == "spore: downloading the model (0 MB)"


def test_offline_is_one_line(folder: Path, spore: Spore) -> None:
    pytest.importorskip("huggingface_hub")
    done = spore("pull", "hf:owner/one", HF_ENDPOINT="http://127.0.0.1:9", SPORE_MODEL_STORE=str(folder))
    assert done.returncode == 1
    assert "http://127.0.0.1:9 cannot be reached" in one_line(done.stderr)
    done = spore("pull", "hf:owner/one", HF_HUB_OFFLINE="1", SPORE_MODEL_STORE=str(folder))
    assert "HF_HUB_OFFLINE is set" in one_line(done.stderr)


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_pull_that_is_ended_goes_on(folder: Path, fake: FakeHub, spore: Spore, how: str) -> None:
    if how == "interrupted" and sys.platform == "win32":
        pytest.skip("Ctrl-C cannot be sent to one process here")
    fake.cut["only.gguf"] = [700_000]
    variables = {"HF_ENDPOINT": fake.address, "SPORE_MODEL_STORE": str(folder)}
    # Tests that run in a shell's background inherit that Ctrl-C is ignored.
    slow = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    slow += "import sporelm.files.store.downloads as t; t.PAUSE_S = 600; "
    words = command("pull", "hf:owner/one")
    words[2] = slow + words[2]
    with subprocess.Popen(words, env=environment(**variables), stderr=subprocess.PIPE, text=True) as process:
        while not any(store.unfinished()) or store.unfinished()[0].nbytes < 700_000:
            assert process.poll() is None
        process.send_signal(signal.SIGINT) if how == "interrupted" else process.kill()
        _, errors = process.communicate(timeout=60)
    if how == "interrupted":
        assert process.returncode == 130
        assert one_line(errors) == "spore: downloading the model (2 MB)"
    assert store.find("hf:owner/one") is None
    done = spore("pull", "hf:owner/one", **variables)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == CONTENT
    assert set(fake.ranges_asked()) == {"bytes=700000-"}
    assert list_files(folder) == ["hf/owner/one/only.gguf"]
