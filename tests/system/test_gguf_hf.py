"""`spore gguf from-hf | to-hf` as a user runs them; and llama.cpp as the reader, where it is there."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from gguf_models import contents
from hf_folders import write_model
from peer_logits import load_peer_vocab
from sporelm.cli.main import main
from sporelm.files.safetensors import open_safetensors
from sporelm.quant import BF16
from sporelm.text import load_tokenizer
from sporelm.text.tokenizers.conversion.tokenizer_comparison import TEXTS
from system.processes import HELD, command, environment, one_line
from tiny_models import TINY, Tiny

MODEL, WINDOWED = (  # with enough tokens for all bytes
    Tiny(tiny.name, tiny.config | {"vocab_size": 300}, tiny.seed)
    for tiny in TINY
    if tiny.name in ("llama", "mistral-window-5")
)


def spore(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("gguf", *words), capture_output=True, text=True, env=environment(), timeout=120, check=False, **options
    )


def failure(*words: object) -> str:
    """The line that a command ends with, without the cost of a process."""
    with contextlib.redirect_stderr(io.StringIO()) as found:
        assert main(["gguf", *map(str, words)]) in (1, 2)  # which of them: test_usage.py
    return one_line(found.getvalue())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", MODEL, BF16)


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():  # as folders in the cache of the hub are
        (linked / path.name).symlink_to(path)
    done = spore("from-hf", linked, "--json", "--threads", "1")
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert told["notes"] == []
    file = tmp_path / "linked-BF16.gguf"
    assert told["files"][0]["path"] == str(file)
    assert told["files"][0]["bytes"] == file.stat().st_size
    done = spore("to-hf", file, "--shard-size", "20K", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    back = tmp_path / "linked-BF16-hf"
    assert {Path(entry["path"]) for entry in json.loads(done.stdout)["files"]} == set(back.iterdir())
    with open_safetensors(folder) as wanted, open_safetensors(back) as found:
        assert set(found.names) == set(wanted.names)
        for name in wanted.names:
            assert np.array_equal(found.tensor(name).blocks, wanted.tensor(name).blocks)
    done = spore("from-hf", back, "-o", tmp_path / "again.gguf")
    assert done.returncode == 0
    assert contents(tmp_path / "again.gguf") == contents(file)


def test_vocabularies_alone(folder: Path, tmp_path: Path) -> None:
    assert spore("from-hf", folder, "--vocab-only").returncode == 0
    file = tmp_path / "model-vocab.gguf"
    assert contents(file) == {}
    done = spore("to-hf", file, "-o", tmp_path / "made")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert load_tokenizer(tmp_path / "made").encode("abc") == load_tokenizer(folder).encode("abc")


def parts_of(folder: Path) -> list[gguf.GGUFReader]:
    return [gguf.GGUFReader(path) for path in sorted(folder.glob("*.gguf"))]


@pytest.mark.parametrize("no_tensor_first", [False, True])
@pytest.mark.parametrize("limit", [("--split-max-tensors", "5"), ("--split-max-size", "30K")])
def test_split_as_the_split_command_does(
    folder: Path, tmp_path: Path, limit: tuple[str, str], no_tensor_first: bool
) -> None:
    first = ["--no-tensor-first-split"] if no_tensor_first else []
    for name in ("whole", "parts", "cut"):
        (tmp_path / name).mkdir()
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "whole" / "m.gguf")]) == 0
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "parts" / "m.gguf"), *limit, *first]) == 0
    words = [str(tmp_path / "whole" / "m.gguf"), limit[0].replace("split-", ""), limit[1], *first]
    assert main(["gguf", "split", *words, "-o", str(tmp_path / "cut") + "/"]) == 0
    parts = {path.name: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert len(parts) > 2
    assert parts == {path.name: path.read_bytes() for path in (tmp_path / "cut").iterdir()}
    (whole,), readers = parts_of(tmp_path / "whole"), parts_of(tmp_path / "parts")
    assert [it.name for reader in readers for it in reader.tensors] == [it.name for it in whole.tensors]
    assert bool(readers[0].tensors) is not no_tensor_first
    for number, reader in enumerate(readers):
        found = [reader.fields[key].contents() for key in ("split.no", "split.count", "split.tensors.count")]
        assert found == [number, len(readers), len(whole.tensors)]


def test_a_model_below_the_limit_is_one_file(folder: Path, tmp_path: Path) -> None:
    """As llama.cpp's converter has it. Without a limit, --no-tensor-first-split makes two files."""
    (tmp_path / "one").mkdir()
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "one" / "m.gguf"), "--split-max-size", "1G"]) == 0
    (one,) = parts_of(tmp_path / "one")
    assert "split.count" not in one.fields
    (tmp_path / "two").mkdir()
    assert (
        main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "two" / "m.gguf"), "--no-tensor-first-split"]) == 0
    )
    assert [len(reader.tensors) for reader in parts_of(tmp_path / "two")] == [0, len(one.tensors)]
    done = spore("from-hf", folder, "--vocab-only", "--no-tensor-first-split", "-o", tmp_path / "v.gguf", "--json")
    assert [file["path"] for file in json.loads(done.stdout)["files"]] == [str(tmp_path / "v.gguf")]


def test_files_without_data(folder: Path, tmp_path: Path) -> None:
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 0
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "header.gguf"), "--no-data"]) == 0
    header = (tmp_path / "header.gguf").read_bytes()
    assert header == (tmp_path / "m.gguf").read_bytes()[: gguf.GGUFReader(tmp_path / "m.gguf").data_offset]
    assert main(["gguf", "diff", str(tmp_path / "m.gguf"), str(tmp_path / "header.gguf"), "--no-data"]) == 0


def test_notes_are_told(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", WINDOWED)
    done = spore("from-hf", folder, "--dry-run")
    assert done.returncode == 0
    assert one_line(done.stderr).startswith("spore: note: llama.cpp leaves the sliding window aside")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["from-hf", "{no}"], "no model at"),
        (["from-hf", "{m}/config.json"], "is not a folder"),
        (["from-hf", "{m}/*.json"], "stands for 3 models"),
        (["from-hf", "{m}", "--split-max-size", "2X"], "size '2X' must be"),
        (["from-hf", "{m}", "--split-max-tensors", "0"], "--split-max-tensors is 0"),
        (["from-hf", "{m}", "--split-max-tensors", "3", "--split-max-size", "2G"], "--split-max-tensors exclude"),
        (["from-hf", "{m}", "--threads", "0"], "--threads is 0"),
        (["from-hf", "{m}", "-o", "{no}/x.gguf"], "there is no folder"),
        (["from-hf", "{m}", "--pre", "x"], "tokenizer.ggml.pre is not supported (got 'x'"),
        (["to-hf", "{m}"], "is a folder; give a .gguf file"),
        (["to-hf", "{m}/config.json"], "is not a GGUF file"),
        (["to-hf", "{m}/model.safetensors", "--shard-size", "5X"], "size '5X' must be"),
    ],
)
def test_wrong_calls_end_with_one_line(folder: Path, tmp_path: Path, words: list[str], reason: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert reason in failure(*(word.format(m=folder, no=tmp_path / "no") for word in words))
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_overwritten(folder: Path, tmp_path: Path) -> None:
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 0
    assert "is there already; --force" in failure("from-hf", folder, "-o", tmp_path / "m.gguf")
    assert "is there already; --force" in failure("to-hf", tmp_path / "m.gguf", "-o", folder)
    assert main(["gguf", "to-hf", str(tmp_path / "m.gguf"), "-o", str(folder), "--force"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("tool", ["from-hf", "to-hf"])
def test_a_file_that_may_not_grow(folder: Path, tmp_path: Path, tool: str) -> None:
    import resource

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    source, place = folder, tmp_path / "out.gguf"
    if tool == "to-hf":
        assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 0
        source, place = tmp_path / "m.gguf", tmp_path / "out"
    before = sorted(tmp_path.rglob("*"))
    done = spore(tool, source, "-o", place, preexec_fn=limit)
    assert done.returncode == 1
    assert "cannot be written" in one_line(done.stderr)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes without a word")
def test_an_end_in_the_middle_leaves_no_folder(tmp_path: Path) -> None:
    wide = MODEL.config | {"hidden_size": 384, "intermediate_size": 2048, "num_hidden_layers": 2}
    folder = write_model(tmp_path / "model", Tiny("wide", wide, 1), BF16)
    assert main(["gguf", "from-hf", str(folder), "-o", str(tmp_path / "m.gguf")]) == 0
    place = tmp_path / "out"
    words = command("gguf", "to-hf", tmp_path / "m.gguf", "--dtype", "f32", "--shard-size", "10M", "-o", place)
    words[2] = HELD + words[2]
    process = subprocess.Popen(words, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (place.is_dir() and list(place.iterdir())):
        assert process.poll() is None, "it ended before it was stopped"
        assert time.monotonic() < until
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 143
    assert not place.exists()


@pytest.fixture(scope="session")
def peer() -> Path:
    """The folder in which bench/peer.sh has built llama.cpp, as SPORE_PEER names it."""
    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip("SPORE_PEER names no folder with llama.cpp's programs and libraries: bench/peer.sh builds one")
    return Path(place)


@pytest.mark.parametrize("type_name", ["auto", "q8_0"])
def test_llama_cpp_goes_on_with_the_same_words(story: Path, peer: Path, tmp_path: Path, type_name: str) -> None:
    file = tmp_path / "story.gguf"
    assert main(["gguf", "from-hf", str(story), "-o", str(file), "--type", type_name]) == 0
    prompt = "Once upon a time"
    if not (peer / "llama-simple").is_file():
        pytest.skip(f"{peer} has no llama-simple")
    theirs = subprocess.run(
        [peer / "llama-simple", "-m", file, "-n", "32", prompt], capture_output=True, text=True, timeout=120,
        env=os.environ | {"LD_LIBRARY_PATH": str(peer)}, check=True,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        words = ["run", str(file), "-p", prompt, "-n", "32", "--temp", "0", "--json"]
        assert main(words) == 0
    ours = json.loads(printed.getvalue())["text"]
    assert theirs.stdout.rstrip().endswith((prompt + ours).rstrip())


def test_llama_cpp_cuts_texts_alike(story: Path, peer: Path, root: Path, tmp_path: Path) -> None:
    peer_vocab = load_peer_vocab(root)
    library = peer_vocab.load_library(peer)
    for number, source in enumerate([story, write_model(tmp_path / "model", MODEL)]):
        file = tmp_path / f"{number}.gguf"
        assert main(["gguf", "from-hf", str(source), "-o", str(file), "--vocab-only"]) == 0
        ours = load_tokenizer(file)
        with peer_vocab.PeerVocab(library, file) as theirs:
            # llama.cpp ends the process at a character that neither a token nor bytes can write.
            for text in ("Once upon a time, there was Tom.", "  two  spaces", "\n\na") if number == 0 else TEXTS:
                ids = ours.encode(text, add_special_tokens=False, parse_special=False)
                assert theirs.encode(text) == ids, text
