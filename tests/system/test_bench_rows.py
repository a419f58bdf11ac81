"""The benchmark's cases, limits, rows and files, with engines and peers whose speed is known."""

import csv
import io
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from families import EVERY
from sporelm import __version__
from sporelm.bench import BenchCase, LlamaPeer, build_cases, choose_context, measure_cases, open_peer
from sporelm.bench.bench_rows import (
    CSV_COLUMNS,
    BenchRow,
    PeerFigure,
    SpeedLimit,
    append_rows,
    check_results_file,
    rows_to_csv,
    rows_to_markdown,
)
from sporelm.bench.roofline import Workload, compute_workload
from sporelm.cli.bench import CONTEXT, find_commit, strip_folders
from sporelm.cli.main import main
from sporelm.errors import RequestError
from sporelm.models.architectures.gemma3n import Gemma3nConfig
from sporelm.models.architectures.nanbeige import NanbeigeConfig
from sporelm.models.blocks.block_memory import State
from sporelm.models.config import Experts, ModelConfig
from sporelm.models.latent_config import SparseConfig
from sporelm.quant import FORMATS


class SteadyEngine:
    """10 ms a prompt token, 100 ms a decode step whatever the batch."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def bench_prefill(self, n: int) -> float:
        self.calls.append((n,))
        return n * 0.01

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
        self.calls.append((n, batch, depth))
        return n * 0.1

    def bench_whole(self, n: int, batch: int, prompt: int) -> float:
        self.calls.append((n, batch, prompt, 0))
        return batch * prompt * 0.01 + n * 0.1


def test_cases_of_the_contract() -> None:
    assert build_cases([512], [128], [1, 8], [0]) == [
        BenchCase(512, False),
        BenchCase(128, True),
        BenchCase(64, True, batch=8, depth=128),
    ]
    assert build_cases([0], [128], [1], [0, 1024]) == [BenchCase(128, True), BenchCase(128, True, depth=1024)]
    assert [case.test for case in build_cases([512], [128], [1], [0])] == ["pp512", "tg128"]


@pytest.mark.parametrize(
    "wrong", [([-1], [1], [1], [0]), ([1], [1], [0], [0]), ([1], [1], [1], [-5]), ([0], [0], [1], [0])]
)
def test_cases_that_cannot_be_measured(wrong: tuple[list[int], ...]) -> None:
    with pytest.raises(RequestError):
        build_cases(*wrong)


def test_measure_warms_up_and_alternates() -> None:
    engine = SteadyEngine()
    wanted = build_cases([50], [20], [1, 4], [0])
    found = measure_cases(engine, wanted, 3, lambda case, stream: None)
    assert engine.calls == [(50,), (20, 1, 0), (64, 4, 128)] * 4, "one warm-up, three samples, in turn"
    assert [row.tok_s for row in found] == pytest.approx([100, 10, 40])
    assert [len(row.samples) for row in found] == [3, 3, 3]


def test_each_sample_is_announced_with_the_speed_so_far() -> None:
    announced: list[tuple[str, int, int]] = []
    measure_cases(
        SteadyEngine(),
        build_cases([50], [], [1], [0]) + build_cases([0], [20], [4], [0]),
        2,
        lambda case, stream: None,
        announce=lambda *words: announced.append(words),
    )
    assert announced == [
        ("pp50: warm-up", 0, 6),
        ("tg64, batch 4, depth 128: warm-up", 1, 6),
        ("pp50: sample 1 of 2", 2, 6),
        ("tg64, batch 4, depth 128: sample 1 of 2", 3, 6),
        ("pp50: sample 2 of 2, 100.0 tok/s so far", 4, 6),
        ("tg64, batch 4, depth 128: sample 2 of 2, 40.0 tok/s so far", 5, 6),
        ("the machine's limits", 1, 1),
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stderr", [Terminal, io.StringIO])
def test_progress_is_for_terminals_and_leaves_stdout_alone(
    stderr: type[io.StringIO], story: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = stderr()
    monkeypatch.setattr("sys.stderr", shown)
    assert main(["bench", str(story), "-p", "8", "-n", "2", "--repeat", "2", "--json"]) == 0
    assert [row["test"] for row in json.loads(capsys.readouterr().out)] == ["pp8", "tg2"]
    stages = ("the machine's limits", "pp8: warm-up", "tg2: warm-up", "pp8: sample 1 of 2", "tg2: sample 2 of 2, ")
    assert [stage for stage in stages if stage in shown.getvalue()] == (list(stages) if stderr is Terminal else [])


def test_whole_runs_count_their_prompts() -> None:
    engine = SteadyEngine()
    wanted = build_cases([0], [0], [1, 4], [0], whole=True)
    found = measure_cases(engine, wanted, 1, lambda case, stream: None)
    assert [row.test for row in found] == ["pp128+tg64"] * 2
    assert engine.calls == [(64, 1, 128, 0), (64, 4, 128, 0)] * 2
    assert [row.tok_s for row in found] == pytest.approx([64 / (1.28 + 6.4), 256 / (5.12 + 6.4)])
    assert found[1].batch == 4
    assert wanted[1].context == 192


def test_each_decode_sample_uses_the_bandwidth_measured_around_it() -> None:
    """Memory halves its speed after the second sample, and so does the engine."""
    work = Workload(weight_bytes=1000, kv_bytes=0, matrix_values=100, output_values=5, integer=True)
    machine = {"stream_bytes_s": 1e9, "int8_dot_ops_s": 1e9}
    streams = iter([20e3, 20e3, 20e3, 30e3, 10e3, 10e3])
    events: list[str] = []

    class ChangingEngine(SteadyEngine):
        speeds = iter([1.0, 10.0, 10.0, 5.0])

        def bench_decode(self, n: int, batch: int = 1, depth: int = 0) -> float:
            events.append("sample")
            return n / next(self.speeds)

    def measure_stream() -> float:
        events.append("stream")
        return next(streams)

    def limit(case: BenchCase, stream: float | None) -> SpeedLimit:
        return work.limit(case, machine if stream is None else machine | {"stream_bytes_s": stream})

    found = measure_cases(ChangingEngine(), build_cases([50], [20], [1], [0]), 3, limit, measure_stream=measure_stream)
    assert events == ["sample", *["stream", "sample", "stream"] * 3], "prompts are measured without"
    prompt, decode = found
    assert prompt.sample_limits == ()
    assert prompt.share == prompt.tok_s / work.limit(BenchCase(50, False), machine).value
    assert decode.sample_limits == (20.0, 25.0, 10.0)
    assert decode.limit == SpeedLimit("stream", 20.0)
    assert decode.share == 0.5, "the samples' shares are 0.5, 0.4 and 0.5; the medians' ratio would be 10 / 20"
    assert decode.as_json()["limit"] == {"kind": "stream", "value": 20.0, "share": 0.5}


def test_repeat_must_be_positive() -> None:
    with pytest.raises(RequestError, match="--repeat is 0"):
        measure_cases(SteadyEngine(), build_cases([1], [1], [1], [0]), 0, lambda case, stream: None)


def test_decode_limit_counts_weights_once_and_kv_per_sequence() -> None:
    work = Workload(weight_bytes=1000, kv_bytes=2, matrix_values=10, output_values=5, integer=True)
    machine = {"stream_bytes_s": 1e6, "int8_dot_ops_s": 1e9, "f32_ops_s": 1e8}
    assert work.limit(BenchCase(100, True), machine) == SpeedLimit("stream", 1e6 / (1000 + 50 * 2))
    assert work.limit(BenchCase(64, True, batch=8, depth=128), machine).value == 8 * 1e6 / (1000 + 8 * 160 * 2)
    whole = work.limit(BenchCase(64, True, batch=8, prompt=128), machine)
    prompts, tokens = (
        work.limit(BenchCase(128, False), machine),
        work.limit(BenchCase(64, True, batch=8, depth=128), machine),
    )
    assert whole.value == pytest.approx(512 / (8 * 128 / prompts.value + 512 / tokens.value))
    assert work.limit(BenchCase(10, False), machine) == SpeedLimit("compute", 10 * 1e9 / (2 * (100 + 5)))


def test_prompt_limit_is_the_rate_for_the_bits_of_the_weights() -> None:
    work = Workload(
        weight_bytes=1000, kv_bytes=2, matrix_values=10, output_values=0, integer=True, form=FORMATS["Q8_0"]
    )
    machine = {"stream_bytes_s": 1e6, "int8_dot_ops_s": 1e9, "f32_ops_s": 1e8, "int8_dot_8bit_ops_s": 4e8}
    assert work.limit(BenchCase(10, False), machine).value == pytest.approx(4e8 / 20)
    for name in ("Q6_K", "Q4_0", "IQ2_XS"):
        assert replace(work, form=FORMATS[name]).limit(BenchCase(10, False), machine).value == pytest.approx(1e9 / 20)
    floats = replace(work, form=FORMATS["F16"], integer=False)
    assert floats.limit(BenchCase(10, False), machine).value == pytest.approx(1e8 / 20)


def test_work_of_a_model() -> None:
    config = ModelConfig(
        name="m", architecture="llama", model="llama", layers=2, width=8, heads=4, kv_heads=2, head_dim=2, ffn=16,
        vocab=32, eps=1e-5, rope_theta=1e4, context_length=64, tie_embeddings=False, dtype="F32",
    )  # fmt: skip
    work = compute_workload(config, 10_000, 4)
    # q 8x8, k 8x4, v 8x4, o 8x8 and three 8x16, in two layers.
    assert work.matrix_values == 2 * (64 + 32 + 32 + 64 + 3 * 128)
    assert work.kv_bytes == 2 * 2 * 4 * 4
    assert work.weight_bytes == 10_000 - 32 * 8 * 4
    assert not work.integer
    windowed = compute_workload(replace(config, window=10, full_layers=frozenset({1})), 10_000, 4)
    assert (windowed.kv_bytes, windowed.window, windowed.window_bytes) == (2 * 2 * 2 * 4, 10, 2 * 2 * 2 * 4)
    machine = {"stream_bytes_s": 1e6}
    assert windowed.limit(BenchCase(2, True, depth=50), machine).value == 1e6 / (work.weight_bytes + 51 * 32 + 10 * 32)
    assert windowed.limit(BenchCase(2, True), machine) == work.limit(BenchCase(2, True), machine), (
        "all is within the window"
    )


def test_of_sparse_attention_the_rows_chosen_count() -> None:
    """An indexer's keys are read for all positions, latents for the positions that it chooses."""
    config = next(case for case in EVERY if case.name == "deepseek32").model.config
    assert isinstance(config, SparseConfig)
    latent, indexer = config.latent, config.indexer
    work = compute_workload(config, 10_000, 2)
    assert (work.kv_bytes, work.window) == (2 * config.layers * indexer.head_dim, indexer.topk)
    assert work.window_bytes == 2 * config.layers * (latent.kv_lora_rank + latent.qk_rope_head_dim)


def test_layers_gone_through_twice_count_twice_and_tables_do_not() -> None:
    by_name = {case.name: case.model.config for case in EVERY}
    looped = by_name["nanbeige"]
    assert isinstance(looped, NanbeigeConfig)
    once = compute_workload(replace(looped, num_loops=1), 300_000, 4)
    work, loops = compute_workload(looped, 300_000, 4), looped.num_loops
    assert (loops, work.kv_bytes, work.matrix_values) == (3, 3 * once.kv_bytes, 3 * once.matrix_values)
    output_bytes = 4 * work.output_values
    assert work.weight_bytes - output_bytes == loops * (once.weight_bytes - output_bytes)
    fed, tied = (replace(by_name["gemma3n"], tie_embeddings=ties) for ties in (False, True))
    assert isinstance(fed, Gemma3nConfig)
    rows = 4 * fed.per_layer_vocab * fed.per_layer_input_size * fed.layers
    assert compute_workload(tied, 9_000_000, 4).weight_bytes == 9_000_000 - rows
    assert compute_workload(fed, 9_000_000, 4).weight_bytes == 9_000_000 - rows - 4 * fed.vocab * fed.width
    assert compute_workload(fed, 9_000_000, 4).kv_bytes > 0


def test_of_recurrent_states_all_is_read_and_written() -> None:
    case = next(case for case in EVERY if case.name == "qwen3next")
    work, config = compute_workload(case.model.config, 10_000, 2), case.model.config
    assert work.kv_bytes == 2 * config.kv_heads * config.head_dim * 2, "of four layers one has keys and values"
    shapes = [shape for each in case.model.memory() if isinstance(each, State) for shape in each.shapes]
    assert work.state_bytes == sum(4 * prod(shape) for shape in shapes) > 0
    limit = work.limit(BenchCase(2, True, batch=3), {"stream_bytes_s": 1e6}).value
    assert limit == 3e6 / (work.read_bytes(3) + 3 * (work.kv_bytes + 2 * work.state_bytes))


def test_only_the_experts_that_tokens_chose_count() -> None:
    config = ModelConfig(
        name="m", architecture="qwen3moe", model="qwen3", layers=2, width=8, heads=4, kv_heads=2, head_dim=2, ffn=16,
        vocab=32, eps=1e-5, rope_theta=1e4, context_length=64, tie_embeddings=True, dtype="F32",
        experts=Experts(count=8, used=2, ffn=12, renormalize=True),
    )  # fmt: skip
    work = compute_workload(config, 10_000, 4, 8_000)
    # q 8x8, k 8x4, v 8x4, o 8x8, the router 8x8, and of eight experts of three 8x12 two.
    assert work.matrix_values == 2 * (64 + 32 + 32 + 64 + 64 + 2 * 3 * 96)
    assert (work.weight_bytes, work.expert_bytes) == (10_000, 8_000)
    assert work.read_bytes(1) == 2_000 + 8_000 / 4
    assert work.read_bytes(2) == 2_000 + 8_000 * (1 - 0.75**2)
    assert work.read_bytes(1000) == pytest.approx(10_000)
    machine = {"stream_bytes_s": 1e6}
    assert work.limit(BenchCase(2, True), machine).value == 1e6 / (4_000 + work.kv_bytes)


ROW = BenchRow(
    "tg128",
    1,
    0,
    (90.0, 110.0, 100.0),
    SpeedLimit("stream", 200.0),
    (PeerFigure("llama.cpp fa=on", (40.0, 60.0, 50.0)),),
)


def test_row_as_json_is_the_contract() -> None:
    assert ROW.as_json() == {
        "test": "tg128",
        "batch": 1,
        "depth": 0,
        "tok_s": 100.0,
        "samples": [90.0, 110.0, 100.0],
        "limit": {"kind": "stream", "value": 200.0, "share": 0.5},
        "peer": {"name": "llama.cpp fa=on", "tok_s": 50.0, "ratio": 2.0, "share": None},
        "peers": [{"name": "llama.cpp fa=on", "tok_s": 50.0, "ratio": 2.0, "share": None}],
    }
    bare = BenchRow("pp1", 1, 0, (1.0,)).as_json()
    assert bare["limit"] is None
    assert bare["peer"] is None


def test_tables() -> None:
    lines = rows_to_markdown([ROW]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert "| 2.00 |" in lines[2]
    assert rows_to_csv([ROW]).splitlines()[0] == ",".join(CSV_COLUMNS)


def test_append_keeps_one_header(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for _ in range(2):
        append_rows(path, [ROW], {"machine": "m, two cores", "commit": "abc"})
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("machine,commit,test,")
    assert lines[1].startswith('"m, two cores",abc,tg128,')
    with pytest.raises(RequestError, match="other columns"):
        append_rows(path, [ROW], {"other": "x"})


def test_a_place_for_rows_is_checked_before(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    assert check_results_file(path, ["time"]) is False
    append_rows(path, [ROW], {"time": "now"})
    assert check_results_file(path, ["time"]) is True
    with pytest.raises(RequestError, match="other columns"):
        check_results_file(path, ["when"])
    for wrong in (tmp_path, tmp_path / "no" / "rows.csv"):
        with pytest.raises(RequestError, match="--save"):
            check_results_file(wrong, ["time"])


def test_a_place_that_may_not_be_written_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "os.access", lambda place, mode: False
    )  # the user of the tests may be allowed to write anywhere
    with pytest.raises(RequestError, match="is not writable"):
        check_results_file(tmp_path / "rows.csv", ["time"])


def test_context_for_what_is_measured() -> None:
    wanted = build_cases([512], [128], [1, 8], [0, 9000])
    assert choose_context(wanted, 16384, None, 8192) == 9128
    assert choose_context(wanted, 16384, 10000, 8192) == 10000
    assert choose_context(wanted[:1], 16384, None, 8192) is None
    assert BenchCase(64, True, batch=8, depth=128).context == 192
    with pytest.raises(RequestError, match=r"-n 128 -d 9000 needs .* 9128 positions, the model has 8192"):
        choose_context(wanted, 8192, None, 8192)
    with pytest.raises(RequestError, match=r"-p 512 needs .* --max-context is 256: raise it"):
        choose_context(wanted[:1], 8192, 256, 8192)
    with pytest.raises(RequestError, match=r"-b 8 needs"):
        choose_context([BenchCase(64, True, batch=8, depth=128)], 8192, 64, 8192)


def test_commands_are_kept_without_folders() -> None:
    assert [strip_folders(word) for word in ("-p", "512", "1,8", "synthetic:tiny:q4_0")] == [
        *["-p", "512", "1,8", "synthetic:tiny:q4_0"]
    ]
    assert strip_folders("/home/me/models/m.gguf") == "m.gguf"
    assert strip_folders("/home/me/peer/build-avx2/bin") == "build-avx2/bin"
    assert strip_folders("--save=/home/me/rows.csv") == "--save=rows.csv"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("https://localhost:8706/v1", "https://localhost:8706/v1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://ann:sesame@host/v1/a@b?key=sesame#sesame", "https://host/v1/a@b"),
        ("https://host?key=https://sesame/", "https://host"),
    ],
)
def test_commands_keep_addresses_without_secrets(address: str, kept: str) -> None:
    assert strip_folders(address) == kept
    assert strip_folders(f"--url={address}") == f"--url={kept}"


def test_kept_results_are_explained_and_traceable(root: Path) -> None:
    folder = root / "bench" / "results"
    explained = (folder / "README.md").read_text(encoding="utf-8")
    files = sorted(folder.glob("*.csv"))
    assert files
    for path in files:
        assert f"`{path.name}`" in explained, f"bench/results/README.md does not say what {path.name} is"
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert rows, path.name
        if path.stem.endswith("-scale-steps"):  # of the cost model, with columns of its own, which the page explains
            continue
        served = path.stem.endswith("-server")  # by `spore bench serve`
        needed = ("model", "output_tok_s", "samples") if served else ("test", "tok_s", "samples")
        assert list(rows[0])[: len(CONTEXT)] == list(CONTEXT)
        without_peer_share = CSV_COLUMNS[:-1]  # of earlier files
        assert served or list(rows[0])[len(CONTEXT) :] in (CSV_COLUMNS, without_peer_share)
        assert all(row[column] for row in rows for column in (*CONTEXT, *needed))
    for column in (*CONTEXT, *CSV_COLUMNS):
        assert f"`{column}`" in explained, f"bench/results/README.md does not say what {column} is"


LLAMA_TOOL = """#!{python}
import json, sys
words = sys.argv[1:]
if "--help" in words:
    sys.exit(0)
value = lambda name: words[words.index(name) + 1]
slow = 1 if value("-fa") == "on" else 2
if "-npl" in words:
    print("some other line")
    print(json.dumps({{"t_tg": int(value("-npl")) * int(value("-ntg")) * slow / 30, "t_pp": 1.0}}))
else:
    print(json.dumps([{{"avg_ts": (500.0 if value("-n") == "0" else 50.0) / slow}}]))
"""

IK_TOOL = """#!{python}
import json, sys
words = sys.argv[1:]
if "--help" in words:
    print("-rtr, --run-time-repack <0|1>")
    sys.exit(0)
open("llama.log", "w").write("where it was started")
value = lambda name: words[words.index(name) + 1]
slow = 1 if value("-fa") in ("0", "off") else 2
if "-npl" in words:
    slow /= 2 if "-rtr" in words else 1
    print("|    PP |     TG |    B |   N_KV |   T_PP s |", file=sys.stderr)
    seconds = int(value("-npl")) * int(value("-ntg")) * slow / 40
    print(f"| 128 | 64 | 4 | 768 | 1.500 | 1.0 | {{seconds:.3f}} | 1.0 | 2.5 | 1.0 |", file=sys.stderr)
else:
    slow /= 2 if value("-rtr") == "1" else 1
    print(json.dumps([{{"avg_ts": (70.0 if "-gp" in words else 700.0) / slow}}]))
"""


def write_tools(folder: Path, text: str) -> Path:
    """Write programs that print what those of a peer print."""
    folder.mkdir()
    for name in ("llama-bench", "llama-batched-bench"):
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(stat.S_IRWXU)
    return folder


@pytest.mark.skipif(sys.platform == "win32", reason="a script is not a program there")
def test_peers_take_their_best_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [write_tools(Path("llama"), LLAMA_TOOL), write_tools(Path("ik"), IK_TOOL)]
    peers = [open_peer(folder, Path("m.gguf"), threads=2) for folder in folders]
    found = measure_cases(SteadyEngine(), build_cases([50], [20], [1, 4], [0, 8]), 2, lambda case, stream: None, peers)
    assert [row.peers[0] for row in found] == [
        PeerFigure("llama.cpp fa=on", (speed, speed)) for speed in (500.0, 50.0, 50.0, 30.0)
    ]
    assert [row.peers[1].name for row in found] == ["ik_llama.cpp fa=off rtr=on"] * 4
    assert [row.peers[1].tok_s for row in found] == pytest.approx([1400.0, 1400.0, 140.0, 80.0])
    row = json.loads(json.dumps(found[0].as_json()))
    assert row["peer"]["ratio"] == pytest.approx(100 / 1400, abs=1e-4)
    assert [peer["ratio"] for peer in row["peers"]] == pytest.approx([0.2, 100 / 1400], abs=1e-4)
    lines = list(csv.DictReader(io.StringIO(rows_to_csv(found[:1]))))
    assert [line["peer_name"] for line in lines] == ["llama.cpp fa=on", "ik_llama.cpp fa=off rtr=on"]
    assert lines[0]["samples"] == lines[1]["samples"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ik", "llama"], "a log was left"


@pytest.mark.skipif(sys.platform == "win32", reason="a script is not a program there")
def test_a_peer_whose_output_is_not_readable(tmp_path: Path) -> None:
    peer = open_peer(write_tools(tmp_path / "ik", IK_TOOL.replace("| 128", "128")), Path("m.gguf"), threads=2)
    with pytest.raises(RequestError, match="llama-batched-bench printed 0 results that are readable"):
        peer.decode_batch(64, 4, 128, peer.variants[0])


def test_missing_peer(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"bench/peer\.sh"):
        LlamaPeer(tmp_path, Path("m.gguf"), threads=1)
    with pytest.raises(RequestError, match=r"\.gguf"):
        LlamaPeer(tmp_path, tmp_path, threads=1)


def test_the_commit_is_that_of_our_own_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package inside a user's repository, but not tracked there, has a version and no commit."""
    if shutil.which("git") is None:
        pytest.skip("no git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # a hook of git's, for one, has them name another repository
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # the user may sign commits, for one
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    source = tmp_path / "site-packages" / "bench.py"
    source.parent.mkdir()
    source.touch()
    assert find_commit(source) == __version__
    made = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*made, "init", "-q"], check=True)
    subprocess.run([*made, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    assert find_commit(source) == __version__
    subprocess.run([*made, "add", "."], check=True)
    subprocess.run([*made, "commit", "-q", "-m", "ours"], check=True)
    assert re.fullmatch("[0-9a-f]{7,40}", find_commit(source))
    source.write_text("changed")
    assert re.fullmatch(r"[0-9a-f]{7,40}\+", find_commit(source))
