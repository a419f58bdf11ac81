"""`spore list`, `spore rm` and `spore info`: what is in the store, what goes out of it, and what a model needs."""

import json
import os
import sys
from pathlib import Path

import pytest

from gguf_samples import sample
from hf_folders import write_model
from sporelm import settings
from sporelm.bench.resource_estimate import ResourceEstimate
from sporelm.checkpoints import open_model
from sporelm.cli import list as list_command
from sporelm.cli import rm
from sporelm.cli.main import main
from sporelm.errors import ModelError, ModelNotFound, RequestError
from sporelm.files import store
from sporelm.quant import Q8_0
from sporelm.tools.model_files import find_models
from sporelm.tools.model_summary import summarize_model
from tiny_files import write_folder, write_gguf
from tiny_models import LLAMA, WIDE, Tiny


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a GGUF model, a Hugging Face folder, models of the hub, and one that was not fetched to its end."""
    place = tmp_path / "store"
    monkeypatch.setenv("SPORE_MODEL_STORE", str(place))  # a fresh Setting: the real one may have been read already
    monkeypatch.setattr(settings, "MODEL_STORE", settings.Setting("SPORE_MODEL_STORE", lambda: "", ""))
    hub = place / "hf" / "owner"
    for name in ("little", "folders", "hf/owner/two", "hf/owner/tiny@v1", "hf/owner/.pull-half"):
        (place / name).mkdir(parents=True)
    write_gguf(place / "little" / "x.gguf", WIDE, matrices=Q8_0, more={"general.file_type": 7})
    write_folder(place / "folders" / "model", Tiny("llama", LLAMA, 11))
    (place / "folders" / "model").rename(place / "folder")
    (place / "folders").rmdir()
    sample(hub / "two" / "m-Q4_K_M.gguf")
    sample(hub / "two" / "m-Q8_0.gguf")
    write_folder(hub / "tiny@v1" / "model", Tiny("llama", LLAMA, 11))
    for file in (hub / "tiny@v1" / "model").iterdir():
        file.rename(hub / "tiny@v1" / file.name)
    (hub / "tiny@v1" / "model").rmdir()
    (hub / "tiny@v1" / ".complete").touch()
    (hub / ".pull-half" / "abc.part").write_bytes(b"x" * 5000)
    return place


def list_files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() or path.is_symlink()}


FOLDER = (".complete", "config.json", "model.safetensors")
NAMES = ["folder", "little", "hf:owner/tiny@v1", "hf:owner/two:m-Q4_K_M.gguf", "hf:owner/two:m-Q8_0.gguf"]


def test_entries(folder: Path) -> None:
    found = {entry.name: entry for entry in store.entries()}
    assert list(found) == NAMES
    assert store.names() == NAMES[:2]
    for name, entry in found.items():
        assert store.resolve(name) == entry.path, "a name of the list is a MODEL"
    assert [left.name for left in store.unfinished()] == ["hf:owner/half"]


def test_list(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "x.gguf").write_bytes(b"GGUF\x1b[31m")
    assert main(["list", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in report["models"]}
    assert list(rows) == ["broken", *NAMES]
    little = rows["little"]
    assert (little["architecture"], little["quantization"], little["context_length"]) == ("llama", "Q8_0", 256)
    assert little["bytes"] == (folder / "little" / "x.gguf").stat().st_size
    assert rows["folder"]["architecture"] == "llama"
    assert rows["folder"]["quantization"] == "F32"
    assert "is not supported" in rows["broken"]["error"]
    assert report["unfinished"] == [{"name": "hf:owner/half", "bytes": 5000}]
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "little" in text
    assert "hf:owner/half: 5.0 kB downloaded" in text
    assert "\x1b" not in text


def test_what_goes_while_it_is_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = store.entries()[0]
    for path in found.files:
        path.unlink()
    row = list_command.row_of(found)
    assert (row["bytes"], row["modified"][:4] in ("1969", "1970")) == (0, True)
    assert "error" in row
    list_command.print_rows([row], [])
    assert "cannot be read" in capsys.readouterr().out


def test_list_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SPORE_MODEL_STORE", str(tmp_path / "none"))
    monkeypatch.setattr(settings, "MODEL_STORE", settings.Setting("SPORE_MODEL_STORE", lambda: "", ""))
    assert main(["list"]) == 0
    assert "spore pull smollm2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("names", "gone"),
    [
        (["little"], {"little/x.gguf"}),
        (["folder"], {"folder/config.json", "folder/model.safetensors"}),
        (["hf:owner/two:q8_0", "hf:owner/two:m-Q8_0.gguf"], {"hf/owner/two/m-Q8_0.gguf"}),
        (["hf:owner/two"], {"hf/owner/two/m-Q4_K_M.gguf", "hf/owner/two/m-Q8_0.gguf"}),
        (["hf:owner/two:Q4_K_M", "hf:owner/two"], {"hf/owner/two/m-Q4_K_M.gguf", "hf/owner/two/m-Q8_0.gguf"}),
        (["hf:owner/half", "little"], {"hf/owner/.pull-half/abc.part", "little/x.gguf"}),
        (["hf:owner/tiny@v1"], {f"hf/owner/tiny@v1/{name}" for name in FOLDER}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_rm(folder: Path, names: list[str], gone: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    before = list_files(folder)
    size = sum((folder / name).stat().st_size for name in gone)
    assert main(["rm", "--yes", *names]) == 0
    assert "are free" in capsys.readouterr().out
    assert before - list_files(folder) == gone
    assert size > 0
    assert not any(path.name.startswith(".remove") for path in folder.iterdir())
    assert not [path for path in folder.rglob("*") if path.is_dir() and not any(path.iterdir())], "no empty folder"


def test_rm_takes_all_files_of_a_split(folder: Path) -> None:
    place = folder / "hf" / "owner" / "split"
    place.mkdir()
    for number in (1, 2):
        (place / f"m-Q4_0-{number:05}-of-00002.gguf").write_bytes(b"GGUF")
    (place / "n-Q8_0-00002-of-00002.gguf").write_bytes(b"GGUF")  # the rest of an interrupted one
    store.remove(store.plan_removal(["hf:owner/split:Q4_0"]))
    assert [path.name for path in place.iterdir()] == ["n-Q8_0-00002-of-00002.gguf"]
    store.remove(store.plan_removal(["hf:owner/split"]))
    assert not place.exists(), "the whole repository means rests of downloads too"


@pytest.mark.parametrize("name", ["../x", "/etc", ".", "", "hf", "a/b", "hf:../x", "hf:a/b:../x", ".hidden", "x\n"])
def test_rm_stays_in_the_store(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = list_files(folder)
    assert main(["rm", "--yes", "little", name]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list_files(folder) == before, "nothing goes if one name is wrong"


def test_rm_of_a_missing_model_names_the_nearest(folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="no stored model 'litle'; did you mean little"):
        store.plan_removal(["litle"])
    with pytest.raises(ModelNotFound, match="no stored model 'zzzzzz'; stored: folder, little"):
        store.plan_removal(["zzzzzz"])


def test_rm_asks(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = list_files(folder)
    monkeypatch.setattr(rm, "ask_to_confirm", lambda: False)
    assert main(["rm", "little"]) == 1
    assert list_files(folder) == before
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115 - closed with the interpreter
    with pytest.raises(RequestError, match="give --yes"):
        rm.ask_to_confirm()
    sys.stdin.close()


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_rm_leaves_what_links_point_to(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    sample(elsewhere / "y.gguf")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "linked-file").mkdir()
    (folder / "linked-file" / "y.gguf").symlink_to(elsewhere / "y.gguf")
    store.remove(store.plan_removal(["linked", "linked-file"]))
    assert (elsewhere / "y.gguf").is_file()
    assert not (folder / "linked").exists()
    assert not (folder / "linked-file").exists()


def test_what_cannot_be_removed_stays_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, moves = list_files(folder), 0
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        nonlocal moves
        moves += path.suffix in (".safetensors", ".json")
        if moves == 2:
            moves += 1
            raise PermissionError(13, "in use")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(ModelError, match=r"hf:owner/tiny@v1 cannot be removed: in use"):
        store.remove(store.plan_removal(["hf:owner/tiny@v1"]))
    assert list_files(folder) == before


def test_an_interrupt_puts_back_what_was_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, moves = list_files(folder), Path.rename, 0

    def rename(path: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        done = real(path, target)
        if moves == 2:
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "rename", rename)
    models = store.plan_removal(["hf:owner/tiny@v1"])
    with pytest.raises(KeyboardInterrupt):
        store.remove(models)
    assert list_files(folder) == before


def test_names_nearly_right(folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model 'litle'; did you mean little"):
        store.resolve("litle")
    with pytest.raises(ModelNotFound, match="'smolm2'; did you mean smollm2: known are"):
        store.pull("smolm2")
    with pytest.raises(ModelNotFound, match="run 'spore pull smollm2' first"):
        store.resolve(None, fetch=False)


def test_tools_take_stored_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("little", "hf:owner/two:Q8_0", "hf:owner/tiny@v1"):
        assert main(["gguf", "show", name]) == 0
    capsys.readouterr()
    for name in ("litle", "hf:owner/two:m-Q8_1.gguf", "hf"):
        with pytest.raises(ModelNotFound, match="no model at"):
            list(find_models([name]))
    with pytest.raises(ModelNotFound, match="did you mean little"):
        list(find_models(["litle"]))


def test_what_is_made_of_a_stored_model_comes_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the store it would be a second model in the folder of the first, which could not be opened any more."""
    write_model(folder / "complete", WIDE)
    before, here = list_files(folder), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for words, made in (
        (["quantize", "little", "--type", "Q4_0", "--allow-requantize"], "x-Q4_0.gguf"),
        (["to-hf", "little"], "x-hf"),
        (["from-hf", "complete"], "complete-F32.gguf"),
        (["split", "little", "--max-tensors", "15"], "x-00001-of-00002.gguf"),
    ):
        assert main(["gguf", *words]) == 0
        assert (here / made).exists(), made
    assert list_files(folder) == before
    (folder / "split").mkdir()
    for part in here.glob("*-of-00002.gguf"):
        part.rename(folder / "split" / part.name)
    assert main(["gguf", "merge", "split"]) == 0
    assert (here / "x.gguf").is_file()


def test_info(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["info", "little", "--backend", "reference", "--no-speed"]
    assert main([*words, "--context", "100", "--batch", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["architecture"], report["quantization"], report["runs"]) == ("llama", "Q8_0", True)
    assert report["parameters"] == sum(array.size for array in WIDE.weights().values())
    memory = report["memory"]
    assert (memory["context"], memory["batch"], memory["kv_type"]) == (100, 3, "f16")
    page = 2 * 64 * WIDE.config["num_key_value_heads"] * WIDE.head_dim * 2
    assert memory["kv"] >= 3 * 2 * page * WIDE.config["num_hidden_layers"]
    assert memory["total"] == sum(memory[part] for part in ("weights", "kv", "step", "tables", "program"))
    assert main([*words, "--context", "257"]) == 1
    assert "this model allows 1 to 256" in capsys.readouterr().err
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "for 256 tokens of context on reference" in printed
    assert ("\nhost memory " in printed) == (report["device_memory"]["free"] is not None)
    assert report["device_memory"]["owner"] == "host"


def test_info_shows_the_memory_of_the_device(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sporelm.backends.reference.reference_backend import ReferenceBackend

    monkeypatch.setattr(ReferenceBackend, "free_bytes", lambda self: 10**6)
    monkeypatch.setattr(ReferenceBackend, "total_bytes", lambda self: 8 * 10**9)
    words = ["info", "little", "--backend", "reference", "--no-speed"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "\ndevice memory  1.0 MB of 8.0 GB free\n" in printed
    assert "\nsplit          none of 2 layers on reference" in printed
    assert "\nfits           yes (" in printed, "on the CPU"
    assert main([*words, "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["device_memory"]
    assert memory == {"owner": "device", "free": 10**6, "total": 8 * 10**9}


@pytest.mark.parametrize(
    ("middle", "load", "cache"), [(9.5e9, 0.0, 0), (4e9, 0.0, 0), (9.5e9, 1e6, 0), (4e9, 1e6, 1 << 40)]
)
def test_info_says_why_its_speed_may_be_too_low(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    middle: float,
    load: float,
    cache: int,
) -> None:
    from sporelm.api import cpu_count
    from sporelm.backends.reference.reference_backend import ReferenceBackend

    machine = {"stream_bytes_s": 1e10, "stream_median_bytes_s": middle, "int8_dot_ops_s": 1e12, "f32_ops_s": 1e11}
    monkeypatch.setattr(ReferenceBackend, "measure_limits", lambda self: machine)
    monkeypatch.setattr(cpu_count, "load_average", lambda: load)
    monkeypatch.setattr(cpu_count, "last_level_cache_bytes", lambda: cache)
    assert main(["info", "little", "--backend", "reference"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "estimated tokens/s if all weights are read from memory at 10.0 GB/s (the best of several" in printed
    assert "at most" not in printed
    assert ("half of the reads reach 4.0 GB/s or less" in printed) == (middle == 4e9)
    assert ("the load average is 1000000.0 on " in printed) == (load > 0)
    assert ("the figures are low, because other programs use the machine" in printed) == (middle == 4e9 or load > 0)
    assert ("it can be faster: the weights, " in printed) == (cache > 0)


def test_the_bandwidth_is_that_of_the_best_read() -> None:
    """A clock that makes two of the reads slow: they must not make the limit lower."""
    from sporelm.backends.cpu.tuning import peak_rates

    slow = {3: 5.0, 4: 5.0}
    moments = iter([moment for read in range(peak_rates.REPEATS) for moment in (0.0, slow.get(read, 0.5))])
    times = peak_rates._times(lambda: None, lambda: next(moments))
    assert (len(times), min(times), max(times)) == (peak_rates.REPEATS, 0.5, 5.0)


def test_info_of_what_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample(tmp_path / "x.gguf")
    assert main(["info", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["runs"], report["vocabulary"], report["chat_template"]) == (False, 32, True)
    assert "is not supported" in report["reason"]
    assert main(["info", str(path)]) == 0
    assert "runs here" in capsys.readouterr().out


def test_more_context_and_batch_need_more_and_are_slower(tmp_path: Path) -> None:
    from sporelm.backends.backend_registry import open_backend

    machine = {"stream_bytes_s": 1e9, "int8_dot_ops_s": 1e12, "f32_ops_s": 1e11}
    source = open_model(write_gguf(tmp_path / "x.gguf", WIDE, matrices=Q8_0))
    estimate = ResourceEstimate(source, open_backend("reference", threads=1))
    assert estimate.memory(256, 2).kv == 2 * estimate.memory(256).kv == 8 * estimate.memory(64).kv
    alone, deep, many = (estimate.decode(machine, *case).tok_s for case in ((1, 0), (1, 255), (4, 0)))
    assert deep < alone < many
    assert estimate.decode(machine, 1024).limit in ("compute", "stream")
    slow = machine | {"int8_dot_ops_s": 1.0, "f32_ops_s": 1.0}
    assert estimate.decode(slow).limit == "compute"
    for wrong in ((0, 1), (257, 1), (1, 0), (1, 1025)):
        with pytest.raises(RequestError, match=r"must be between|allows 1 to"):
            estimate.memory(*wrong)
    source.close()


def test_description_of_a_quantized_folder(tmp_path: Path) -> None:
    path = write_folder(tmp_path / "m", Tiny("llama", LLAMA, 11), quantization_config={"quant_method": "gptq"})
    (path / "chat_template.jinja").write_text("{{ messages }}")
    found = summarize_model(path)
    assert (found.quantization, found.chat_template, found.architecture) == ("gptq (F32)", True, "llama")
    assert found.vocabulary == LLAMA["vocab_size"]
