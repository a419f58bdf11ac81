"""`spore gguf split | merge | set-meta | convert` as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import pytest

from gguf_models import contents, write_model
from sporelm.files.gguf import open_gguf
from sporelm.quant import Q8_0
from system.processes import HELD, command, environment, one_line


def spore(*words: object, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("gguf", *words), capture_output=True, text=True, env=environment(), timeout=120, check=False, **options
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", matrices=Q8_0)


def test_split_and_merge(model: Path) -> None:
    done = spore("split", model, "--max-size", "40K", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["written"] is True
    first, *others = [Path(file["path"]) for file in told["files"]]
    assert first == model.with_name(f"m-00001-of-{len(others) + 1:05d}.gguf")
    assert [file["bytes"] for file in told["files"]] == [path.stat().st_size for path in (first, *others)]
    done = spore("merge", model.with_name("m-*-of-*.gguf"), "-o", model.with_name("back.gguf"))
    assert done.returncode == 0, done.stderr
    assert "back.gguf" in done.stdout
    assert model.with_name("back.gguf").read_bytes() == model.read_bytes()


def test_convert_several_into_a_folder(model: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "n.gguf")
    (tmp_path / "out").mkdir()
    done = spore("convert", tmp_path / "*.gguf", "-x", "cast:linear:F16 -> sort", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["m.gguf", "n.gguf"]
    assert contents(tmp_path / "out" / "m.gguf")["blk.0.ffn_up.weight"][0] == "F16"


def test_set_meta_in_place(model: Path) -> None:
    done = spore("set-meta", model, "general.name=Ours", "my.list:[str]=a,b", "--delete", "llama.none*", "--in-place")
    assert "no metadata key fits" in one_line(done.stderr)
    done = spore("set-meta", model, "general.name=Ours", "my.list:[str]=a,b", "--in-place", "--json")
    assert json.loads(done.stdout)["changes"] == {"general.name": "changed", "my.list": "added"}
    with open_gguf(model) as found:
        assert (found.metadata["general.name"], list(found.metadata["my.list"])) == ("Ours", ["a", "b"])


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_set_meta_in_place_follows_a_link_and_spares_what_is_read_only(model: Path) -> None:
    from sporelm.cli.main import main

    link = model.with_name("link.gguf")
    link.symlink_to(model.name)
    assert main(["gguf", "set-meta", str(link), "general.name=Ours", "--in-place"]) == 0
    assert link.is_symlink()
    with open_gguf(model) as found:
        assert found.metadata["general.name"] == "Ours"
    model.chmod(0o444)
    words = ["gguf", "set-meta", str(link), "general.name=Again", "--in-place"]
    assert "is read-only; --force" in one_line(_stderr_of(main, words))
    assert main([*words, "--force"]) == 0


def test_a_text_from_a_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ größer }}\n", encoding="utf-8")
    done = spore("set-meta", model, "--file", f"tokenizer.chat_template={tmp_path / 't.jinja'}", "--in-place")
    assert done.returncode == 0, done.stderr
    with open_gguf(model) as found:
        assert found.metadata["tokenizer.chat_template"] == "{{ größer }}\n"


def test_many_keys_from_a_json_file(model: Path, tmp_path: Path) -> None:
    keys = {"general.name": "Ours", "my.count": {"type": "u64", "value": 5}, "my.list": ["a", "b"]}
    (tmp_path / "keys.json").write_text(json.dumps(keys), encoding="utf-8")
    done = spore(
        "set-meta",
        model,
        "--metadata",
        tmp_path / "keys.json",
        "general.name=Mine",
        "-o",
        tmp_path / "n.gguf",
        "--json",
    )
    assert (done.returncode, done.stderr) == (0, "")
    changes = {"general.name": "changed", "my.count": "added", "my.list": "added"}
    assert json.loads(done.stdout)["changes"] == changes
    fields = gguf.GGUFReader(tmp_path / "n.gguf").fields
    assert [fields[key].contents() for key in changes] == ["Mine", 5, ["a", "b"]]
    assert fields["my.count"].types == [gguf.GGUFValueType.UINT64]


@pytest.mark.parametrize(
    "words",
    [
        ["split", "{m}", "--max-tensors", "10", "-o", "{out}"],
        ["merge", "{m}", "-o", "{out}"],
        ["set-meta", "{m}", "a=1", "-o", "{out}"],
        ["convert", "{m}", "-x", "sort", "-o", "{out}"],
        ["quantize", "{m}", "--type", "Q4_K_M", "--allow-requantize", "-o", "{out}"],
    ],
    ids=lambda words: words[0],
)
def test_files_without_data(model: Path, tmp_path: Path, words: list[str]) -> None:
    """The header is the one that the same command writes in front of the data."""
    from sporelm.cli.main import main

    sizes = {}
    for name in ("whole", "header"):
        (tmp_path / name).mkdir()
        filled = [word.format(m=model, out=tmp_path / name / "n.gguf") for word in words]
        assert main(["gguf", *filled, *(["--no-data"] if name == "header" else [])]) == 0
        sizes[name] = {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
    assert set(sizes["whole"]) == set(sizes["header"])
    for name, header in sizes["header"].items():
        assert len(header) == gguf.GGUFReader(tmp_path / "whole" / name).data_offset
        assert sizes["whole"][name][: len(header)] == header
    shown = spore("show", *(tmp_path / "header").glob("*n-00001*"), *(tmp_path / "header").glob("n.gguf"))
    assert shown.returncode == 0, shown.stderr
    assert "tensor data" in shown.stdout
    assert (
        spore("diff", *(next(iter(sorted((tmp_path / each).iterdir()))) for each in sizes), "--no-data").returncode == 0
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["set-meta", "{m}", "a=1", "--no-data", "--in-place"], "--no-data would delete the tensor data"),
        (["set-meta", "{m}", "a=1", "--no-data", "-o", "{m}", "--force"], "--no-data would delete the tensor data"),
        (["set-meta", "{m}", "--metadata", "{no}", "--in-place"], "cannot be read: No such file"),
        (["set-meta", "{m}", "--metadata", "{m}", "--in-place"], "is not UTF-8"),
        (["split", "{m}", "--max-size", "2X"], "size '2X' must be"),
        (["split", "{m}", "--max-size", "2G", "--max-tensors", "3"], "exclude each other"),
        (["split", "{m}", "--max-tensors", "-1"], "--max-tensors is -1"),
        (["split", "{no}"], "no model at"),
        (["merge", "{m}"], "is one file already"),
        (["merge", "{m}", "-o", "{m}"], "is there already; --force"),
        (["set-meta", "{m}", "a=1"], "either -o OUT"),
        (["set-meta", "{m}", "--in-place"], "nothing to change"),
        (["set-meta", "{m}", "--file", "a", "--in-place"], "is not KEY=PATH"),
        (["set-meta", "{m}", "--file", "a={no}", "--in-place"], "cannot be read: No such file"),
        (["set-meta", "{m}", "llama.block_count=7", "--in-place"], "--force changes it"),
        (["convert", "{m}", "-o", "{no}"], "-x STEPS is missing"),
        (["convert", "{m}", "-x", "sort"], "-o OUT is missing"),
        (["convert", "{m}", "-x", "sort", "-o", "{no}/"], "there is no folder"),
        (["convert", "{m}", "{m}", "-x", "bake", "-o", "{no}"], "there is no step 'bake'"),
    ],
)
def test_wrong_calls_end_with_one_line(model: Path, tmp_path: Path, words: list[str], reason: str) -> None:
    from sporelm.cli.main import main

    before = model.read_bytes()
    filled = [word.format(m=model, no=tmp_path / "no") for word in words]
    error = _stderr_of(main, ["gguf", *filled])
    assert reason in one_line(error)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert model.read_bytes() == before


def _stderr_of(main, words: list[str]) -> str:
    """Return the stderr of a command that fails, without the cost of a process."""
    import contextlib
    import io

    with contextlib.redirect_stderr(io.StringIO()) as found:
        assert main(words) in (1, 2)  # which of them: test_usage.py
    return found.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_file_that_may_not_grow(model: Path) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    before = model.read_bytes()
    done = spore("convert", model, "-x", "sort", "-o", model, "--force", preexec_fn=limit)
    assert done.returncode == 1
    assert "cannot be written" in one_line(done.stderr)
    assert [path.name for path in model.parent.iterdir()] == ["m.gguf"]
    assert model.read_bytes() == before


def held_in_the_middle(model: Path) -> "tuple[subprocess.Popen[bytes], list[Path]]":
    """A conversion of a model in place that waits after its first blocks, and the part that it has begun."""
    words = command("gguf", "convert", model, "-x", "cast:linear:Q4_K", "-o", model, "--force")
    words[2] = HELD + words[2]
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (begun := [path for path in model.parent.iterdir() if path.suffix == ".part"]):
        assert process.poll() is None, "it ended before it was stopped"
        assert time.monotonic() < until
        time.sleep(0.005)
    return process, begun


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_an_end_in_the_middle_leaves_no_part(tmp_path: Path, number: str) -> None:
    model = write_model(tmp_path / "m.gguf", {f"blk.0.ffn_up_{i}.weight": (512, 1024) for i in range(4)})
    before = model.read_bytes()
    process, begun = held_in_the_middle(model)
    os.kill(process.pid, getattr(signal, number))
    assert process.wait(60) == 128 + getattr(signal, number)
    assert len(begun) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
    assert model.read_bytes() == before
    assert process.stderr is not None
    process.stderr.close()


def test_parts_of_a_killed_tool_go_with_the_next_run(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", {f"blk.0.ffn_up_{i}.weight": (512, 1024) for i in range(4)})
    killed, left = held_in_the_middle(model)
    killed.kill()
    killed.communicate()
    assert left[0].exists()
    words = command("gguf", "convert", model, "-x", "sort", "-o", tmp_path / "sorted.gguf")
    subprocess.run(words, env=environment(), check=True, timeout=60, capture_output=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "sorted.gguf"]
