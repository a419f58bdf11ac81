"""The commands on the story model, as a user runs them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from available import BACKENDS, open_available
from sporelm.backends.host_cores import usable_cores
from system.processes import SECONDS, Spore, command, environment, one_line

# Confirmed with transformers; see the tests of the models.
PROMPT = "Once upon a time"
PROMPT_IDS = [1, 80, 147, 201, 282, 57]
GREEDY = [313, 598, 303, 1049, 1468, 267, 628, 333, 94, 1210, 263, 251]
GREEDY_TEXT = ", a little girl named Lily lived in a small house with"


def greedy(story: Path, count: int = len(GREEDY)) -> list[object]:
    return ["run", story, "-p", PROMPT, "-n", count, "--temp", 0]


def test_run_json_is_the_contract(spore: Spore, story: Path) -> None:
    done = spore(*greedy(story), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["prompt_token_ids"] == PROMPT_IDS
    assert found["token_ids"] == GREEDY
    assert found["text"].startswith(", a little girl named Lily")
    assert found["finish_reason"] == "length"
    assert set(found["timings"]) == {"load_s", "compile_s", "ttft_s", "prefill_tok_s", "decode_tok_s"}
    assert all(value >= 0 for value in found["timings"].values())


def test_run_streams_the_same_text(spore: Spore, story: Path) -> None:
    whole = json.loads(spore(*greedy(story), "--json").stdout)["text"]
    done = spore(*greedy(story))
    assert done.returncode == 0, done.stderr
    assert done.stdout == whole + "\n"
    assert "tok/s" in done.stderr
    assert "seed" in done.stderr


@pytest.mark.parametrize("extra", [["--eager"], ["--backend", "reference"], ["--threads", "1"]], ids=" ".join)
def test_run_elsewhere_gives_the_same_ids(spore: Spore, story: Path, extra: list[str]) -> None:
    done = spore(*greedy(story), *extra, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["token_ids"] == GREEDY


def test_prompt_from_a_file_and_from_stdin(spore: Spore, story: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    for done in (spore("run", story, "-f", "prompt.txt", "-n", 3, "--temp", 0, "--json"),
                 spore("run", story, "-f", "-", "-n", 3, "--temp", 0, "--json", stdin=PROMPT)):  # fmt: skip
        assert json.loads(done.stdout)["token_ids"] == GREEDY[:3]


def test_same_seed_same_text(spore: Spore, story: Path) -> None:
    words = ["run", story, "-p", PROMPT, "-n", 20, "--temp", 1.5, "--top-k", 0, "--top-p", 1, "--json"]
    first = json.loads(spore(*words).stdout)
    again = json.loads(spore(*words, "--seed", first["seed"]).stdout)
    assert again["token_ids"] == first["token_ids"]
    other = json.loads(spore(*words, "--seed", first["seed"] + 1).stdout)
    assert other["token_ids"] != first["token_ids"]


def test_stop_string_is_not_printed(spore: Spore, story: Path) -> None:
    done = spore(*greedy(story), "--stop", " named", "--json")
    found = json.loads(done.stdout)
    assert found["text"] == ", a little girl"
    assert found["finish_reason"] == "stop"


def test_tokenize(spore: Spore, story: Path) -> None:
    done = spore("tokenize", story, PROMPT, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ids"] == PROMPT_IDS
    assert len(found["pieces"]) == len(PROMPT_IDS)
    assert all(isinstance(piece, str) for piece in found["pieces"])
    assert spore("tokenize", story, "-", "--json", stdin=PROMPT).stdout == done.stdout
    assert len(spore("tokenize", story, PROMPT).stdout.splitlines()) == len(PROMPT_IDS)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-p", "word " * 3000], 1, "context"),
        (["-p", "a", "-n", "-3"], 2, "max_tokens"),
        (["-p", "a", "--top-p", "2"], 2, "top_p"),
        (["-p", "a", "--backend", "abacus"], 1, "no such back-end (got 'abacus'; allowed cpu, "),
        (["-p", "a", "--max-context", "0"], 2, "--max-context is 0"),
    ],
    ids=["long", "negative", "top-p", "backend", "max-context"],
)
def test_bad_requests(spore: Spore, story: Path, words: list[str], code: int, message: str) -> None:
    done = spore("run", story, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in one_line(done.stderr)


def test_damaged_model(spore: Spore, story: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    folder.mkdir()
    for path in story.iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(content[: len(content) // 2] if path.suffix == ".safetensors" else content)
    done = spore("run", folder, "-p", "a")
    assert (done.returncode, done.stdout) == (1, "")
    one_line(done.stderr)


def test_eval_ppl(spore: Spore, story: Path, tmp_path: Path) -> None:
    tale = "Once upon a time, a little girl named Lily lived in a small house with her mom and her dog. "
    (tmp_path / "tale.txt").write_text(tale * 60, encoding="utf-8")
    done = spore("eval", "ppl", story, "tale.txt", "--json", "--max-tokens", 600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["windows"] == 1
    assert found["scored"] == 255
    assert 1 < found["perplexity"] < 100
    short = spore("eval", "ppl", story, "-", stdin="too short")
    assert short.returncode == 1
    assert "too few" in one_line(short.stderr)


def test_eval_kl_of_f32_weights_is_nothing(spore: Spore, story: Path, tmp_path: Path) -> None:
    (tmp_path / "tale.txt").write_text("One day, Lily saw a small bird on the ground. " * 100, encoding="utf-8")
    done = spore("eval", "kl", story, "tale.txt", "--json", "--max-tokens", 512)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kl"] == pytest.approx(0, abs=1e-9)
    assert found["top1_agreement"] == 1
    assert found["perplexity_ratio"] == pytest.approx(1)


def test_bench_rows(spore: Spore, story: Path, tmp_path: Path) -> None:
    words = ["bench", story, "-p", 16, "-n", 4, "-b", "1,2", "--repeat", 1, "--json", "--save", "rows.csv"]
    done = spore(*words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["test"], row["batch"], row["depth"]) for row in rows] == [
        ("pp16", 1, 0),
        ("tg4", 1, 0),
        ("tg64", 2, 128),
    ]
    assert [row["limit"]["kind"] for row in rows] == ["compute", "stream", "stream"]
    assert all(row["tok_s"] > 0 and len(row["samples"]) == 1 and row["peer"] is None for row in rows)
    saved = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(saved) == 1 + len(rows)
    assert saved[0].startswith("time,machine,commit,command,test,")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", 0, "-n", 8, "-d", 600], "-n 8 -d 600 needs a context of 608 positions, the model has 512"),
        (["-p", 256, "--max-context", 128], "--max-context is 128: raise it (the model has 512)"),
        (["-p", 1, "--save", "no/rows.csv"], "--save 'rows.csv'"),
        (["-p", 1, "--plot", "rows.pdf"], "--plot 'rows.pdf'"),
    ],
    ids=["depth", "max-context", "save", "plot"],
)
def test_what_a_benchmark_cannot_do_is_said_in_one_line(
    spore: Spore, story: Path, words: list[object], message: str
) -> None:
    done = spore("bench", story, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in one_line(done.stderr)


def test_a_benchmark_as_large_as_the_context(spore: Spore, story: Path) -> None:
    done = spore("bench", story, "-p", 512, "-n", 2, "-d", 510, "--repeat", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["test"], row["depth"]) for row in json.loads(done.stdout)] == [("pp512", 0), ("tg2", 510)]


def test_bench_of_a_synthetic_model(spore: Spore, tmp_path: Path) -> None:
    words = ["bench", "synthetic:tiny:q8_0", "-p", 8, "-n", 0, "--repeat", 1, "--plot", "speed.svg", "--json"]
    threads = usable_cores() + 1
    done = spore(*words, "--threads", threads, SPORE_SYNTHETIC_MODELS=str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    assert one_line(done.stderr).startswith(f"spore: --threads {threads}: only ")
    (row,) = json.loads(done.stdout)
    (path,) = (tmp_path / "made").iterdir()
    assert path.name.startswith("tiny-")
    shown = [element.text for element in ElementTree.parse(tmp_path / "speed.svg").iter()]
    assert f"{row['tok_s']:.1f}" in shown
    assert f"synthetic:tiny:q8_0, {threads} threads" in shown


def test_measured_tiles_are_kept_and_told(spore: Spore, tmp_path: Path) -> None:
    place = {"SPORE_CPU_TILES": str(tmp_path / "user" / "tiles.json"), "SPORE_CPU_TARGET": "generic"}
    done = spore("bench", "tune", "--format", "F32", "--quick", "--json", **place)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["name"], row["kernel"]) for row in found["rows"]] == [("F32", "few"), ("F32", "many")]
    assert Path(found["file"]).is_file()
    details = json.loads(spore("doctor", "--json", **place).stdout)["backends"]["cpu"]["details"]
    assert details["tiles"].startswith("measured here 20")
    shipped = spore("bench", "tune", SPORE_CPU_TILES="shipped")
    assert (shipped.returncode, shipped.stdout) == (1, "")
    assert "SPORE_CPU_TILES is 'shipped'" in one_line(shipped.stderr)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_a_completion_that_fails_says_why(spore: Spore, broken: Path, form: list[str]) -> None:
    done = spore("run", broken, "-p", "Once", *form)
    assert done.returncode == 1
    assert "logits are not numbers" in one_line(done.stderr)
    if form:
        assert json.loads(done.stdout)["finish_reason"] == "error"


POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes differ there")


def started(story: Path, *words: object) -> subprocess.Popen[bytes]:
    """`spore run` on a text without an end, its first character awaited."""
    long = command("run", story, "-p", PROMPT, "-n", 10**7, "--ignore-eos", "--roll", *words)
    process = subprocess.Popen(long, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1)
    return process


@POSIX
def test_closed_pipe_is_not_an_error(story: Path) -> None:
    process = started(story)
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert process.wait(SECONDS) == 0
    assert errors == ""


@POSIX
@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_leaves_quietly(story: Path, backend: str) -> None:
    open_available(backend).close()
    process = started(story, "--backend", backend)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert errors == b""
