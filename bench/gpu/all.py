"""The most important figures of all scripts within a time limit: what to run first where there is a GPU.

Usage: PYTHONPATH=src python3 bench/gpu/all.py [--minutes 8] [--out gpu-bench] [--only NAME,..] [--json]

Writes OUT.json (the run, its bars, all rows) and OUT.md (the same as tables) after each part, so that finished
parts are kept if the run is interrupted. Parts run in order of importance, each in its own process: a part that fails,
or takes too long, becomes a row with its error, and the next parts go on.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import harness

FOLDER = Path(__file__).resolve().parent
MIN_SECONDS = 15  # left, for another part to begin
HIDDEN = ("bench", "name", "error", "skipped")
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class BenchPart:
    """One run of a script, and its time limit."""

    name: str
    script: str
    words: str
    seconds: float


# Shares and ratios need the limits, so they come first; then whether results are right; then the bars.
PARTS = (
    BenchPart("limits", "limits", "--repeat 3", 60),
    BenchPart("cases", "conformance", "--only cases --dtypes f32,bf16 --seconds 30", 150),
    BenchPart("tokens", "conformance", "--only tokens", 90),
    BenchPart(
        "linear", "linear", "--shapes 8b --products gate_up,down --formats bf16,fp8,q4_0,q4_k --rows 1,16,4096", 90
    ),
    BenchPart("attention", "attention", "--contexts 8192,32768 --kv f16,fp8", 60),
    BenchPart("8b", "model", "--models 8b --formats bf16 --figures load,decode,prefill,idle,streams --repeat 3", 150),
    BenchPart("8b-q4_0", "model", "--models 8b --formats q4_0 --figures load,decode --repeat 3", 80),
    BenchPart("8b-fp8", "model", "--models 8b --formats fp8 --figures load,decode,prefill --repeat 3", 80),
    BenchPart("8b-w8a8", "model", "--models 8b --formats fp8 --dtype fp8 --figures load,decode,prefill --repeat 3", 80),
    BenchPart("8b-q4_k", "model", "--models 8b --formats q4_k --figures load,decode,prefill --repeat 3", 90),
    BenchPart("8b-ngram", "model", "--models 8b --formats bf16 --figures ngram --repeat 2", 90),
    BenchPart("transformers", "compare_transformers", "--models 8b --repeat 3", 150),
    BenchPart(
        "8b-invariant",
        "model",
        "--models 8b --formats bf16 --figures load,decode,prefill,streams --batch-invariant --repeat 3",
        150,
    ),
    BenchPart("1b", "model", "--models 1b --formats bf16,q4_k --figures load,decode,prefill,idle --repeat 3", 120),
    BenchPart(
        "30b-a3b", "model", "--models 30b-a3b --formats q4_k --figures load,decode,prefill,streams --repeat 3", 180
    ),
)
TINY_WORDS = {
    "cases": "--only cases --dtypes f32 --jobs 1 --max-cases 2 --ops rms_norm",
    "linear": "--products down --formats bf16,q4_0 --rows 1",
    "attention": "--kv f16 --batches 1",
    "8b": "--models mini --formats bf16 --figures load,decode,idle",
    "8b-ngram": "--models mini --formats bf16 --figures ngram",
}  # the parts that --tiny runs


class Runner:
    """Runs parts until the time is over, and collects their rows."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.limits_file, self.rows_file = args, folder / "limits.json", folder / "rows.jsonl"
        self.deadline = perf_counter() + 60 * args.minutes
        self.rows: list[dict[str, Any]] = []

    def run(self, part: BenchPart) -> None:
        """Run a part, as far as the time suffices."""
        left = self.deadline - perf_counter()
        if left < MIN_SECONDS:
            self.rows.append({"bench": part.script, "name": part.name, "skipped": "the time is over"})
            return
        print(f"{part.name}: {left:.0f} s are left", flush=True)
        began = perf_counter()
        error = self._run_process(part, min(left, part.seconds))
        rows = harness.read_rows(self.rows_file)
        self.rows_file.unlink(missing_ok=True)
        if error and not any("error" in row for row in rows):
            rows.append({"bench": part.script, "name": part.name, "error": error})
        self.rows += [row | {"part": part.name} for row in rows]
        print(f"{part.name}: {perf_counter() - began:.0f} s" + f", {error}" * bool(error), flush=True)

    def _run_process(self, part: BenchPart, seconds: float) -> str:
        """Run a script; return why it failed, or ""."""
        words = [sys.executable, str(FOLDER / f"{part.script}.py"), *part.words.split(), "--save", str(self.rows_file)]
        words += ["--device", self.args.device] + ["--tiny", "--repeat", "1"] * self.args.tiny
        if part.script == "limits":
            words += ["--write", str(self.limits_file)]
        elif self.limits_file.is_file():
            words += ["--limits", str(self.limits_file)]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        try:
            _, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own group: processes that it has started too
            process.communicate()
            return f"stopped after {seconds:.0f} s"
        last = errors.strip().rpartition("\n")[2][:300]
        return "" if not process.returncode else last or f"exit code {process.returncode}"


@dataclass(frozen=True)
class Bar:
    """A target for a figure of a row, or for its ratio to that of another row."""

    text: str
    row: str
    figure: str
    bound: float
    base: str = ""  # the row that the figure is divided by
    is_most: bool = False  # whether the bound is an upper one


BARS = (
    Bar("8B bf16 decode, share of read bandwidth", "8b bf16 decode", "share", 0.85),
    Bar("8B Q4_0 decode / bf16", "8b q4_0 decode", "tok/s", 2.4, "8b bf16 decode"),
    Bar("8B Q4_0 decode, share of read bandwidth", "8b q4_0 decode", "share", 0.55),
    Bar("8B Q4_K decode / bf16", "8b q4_k decode", "tok/s", 2.3, "8b bf16 decode"),
    Bar("8B Q4_K decode, share of read bandwidth", "8b q4_k decode", "share", 0.55),
    Bar("8B FP8 (head bf16) decode / bf16", "8b fp8 decode", "tok/s", 1.6, "8b bf16 decode"),
    Bar("attention, 32k context, batch 1", "decode f16 context 32768 batch 1", "share", 0.75),
    Bar("attention, 32k context, batch 16", "decode f16 context 32768 batch 16", "share", 0.75),
    Bar("8B bf16 prefill 4k, share of the matmul rate", "8b bf16 prefill 4096", "share", 0.6),
    Bar("8B FP8 prefill 4k (dtype fp8) / bf16", "8b fp8 w8a8 prefill 4096", "tok/s", 1.4, "8b bf16 prefill 4096"),
    Bar("8B bf16, 256 streams, share of the roofline", "8b bf16 streams 256: 512 in, 256 out", "share", 0.6),
    Bar("idle between decode steps", "8b bf16 idle, 1 streams", "between share", 0.03, is_most=True),
    Bar("n-gram speculation / without", "8b bf16 ngram", "ratio", 1.3),
    Bar("load and capture, seconds", "8b bf16 load", "s", 30.0, is_most=True),
    Bar("decode / transformers", "8b bf16 decode", "ratio", 1.2),
    Bar("batch invariant / without, decode", "8b bf16 invariant decode", "tok/s", 0.8, "8b bf16 decode"),
    Bar(
        "batch invariant / without, 256 streams",
        "8b bf16 invariant streams 256: 512 in, 256 out",
        "tok/s",
        0.8,
        "8b bf16 streams 256: 512 in, 256 out",
    ),
)


def judge_bars(rows: Rows) -> list[dict[str, Any]]:
    """Return each bar with what was found, and whether that suffices; None where it was not measured."""

    def find(name: str, figure: str) -> float | None:
        values = [row[figure] for row in rows if row["name"] == name and row.get(figure) is not None]
        return float(values[0]) if values else None

    judged = []
    for bar in BARS:
        found = find(bar.row, bar.figure)
        if bar.base and found is not None:
            base = find(bar.base, bar.figure)
            found = found / base if base else None
        reached = None if found is None else found <= bar.bound if bar.is_most else found >= bar.bound
        bound = f"{'<=' if bar.is_most else '>='} {bar.bound:g}"
        judged.append({"bar": bar.text, "bound": bound, "found": found, "reached": reached})
    return judged


def render_markdown(run: dict[str, str], bars: Rows, rows: Rows) -> str:
    """Return the run as tables: what ran, the bars, and for each script its rows."""
    lines = ["# " + run["card"], "", *render_table([{"": name, "value": value} for name, value in run.items()])]
    cells: Callable[[Any], str] = lambda value: "" if value is None else f"{value:.3g}"  # noqa: E731
    lines += ["", *render_table([bar | {"found": cells(bar["found"])} for bar in bars])]
    for bench in dict.fromkeys(row["bench"] for row in rows):
        own = [row for row in rows if row["bench"] == bench]
        figures = {name: None for row in own for name in row if name not in (*HIDDEN, "part")}
        table = []
        for row in own:
            values = {name: harness.format_value(name, row[name]) if name in row else "" for name in figures}
            problem = row.get("error") or row.get("skipped") or ""
            table.append({"name": row["name"], **values, "problem": problem.replace("|", "/")})
        lines += ["", f"## {bench}", "", *render_table(table)]
    return "\n".join(lines) + "\n"


def render_table(rows: Rows) -> list[str]:
    """Return rows with the same keys as the lines of a table."""
    if not rows:
        return []
    texts = [["" if value is None else str(value) for value in row.values()] for row in rows]
    return [
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
        *("| " + " | ".join(each) + " |" for each in texts),
    ]


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, default=Path("gpu-bench"), help="of the files, without .json and .md")
    parser.add_argument("--only", help=f"parts: {','.join(part.name for part in PARTS)}")
    args = parser.parse_args()
    harness.check_device(args)
    run = harness.describe_run(args)
    only = args.only.split(",") if args.only else [part.name for part in PARTS]
    parts = [part for part in PARTS if part.name in only]
    if args.tiny:
        parts = [
            BenchPart(each.name, each.script, TINY_WORDS.get(each.name, ""), each.seconds)
            for each in parts
            if each.name == "limits" or each.name in TINY_WORDS
        ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        runner = Runner(args, Path(folder))
        for part in parts:
            runner.run(part)
            result = {"run": run, "bars": judge_bars(runner.rows), "rows": runner.rows}
            args.out.with_name(args.out.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
            text = render_markdown(run, result["bars"], runner.rows)
            args.out.with_name(args.out.name + ".md").write_text(text)
    print(json.dumps(result, indent=1) if args.json else render_markdown(run, result["bars"], result["rows"]))
    return int(any("error" in row for row in result["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
