"""Conformance of the CUDA back-end on this card.

Usage: PYTHONPATH=src python3 bench/gpu/conformance.py [--dtypes f32,bf16] [--ops NAME,..] [--every-case]
       [--only cases,tokens] [--jobs 8] [--seconds 120] [--json]

cases    the conformance cases of all ops against the ops' numpy references, ops with kernels first: the sample of
         `spore doctor --conformance`, or with --every-case all of them
tokens   greedy tokens of small models with random weights, against the CPU back-end in f32; where they differ, how far
         apart the two best logits were. The models are those of `random_models.py`

A row is the cases of an op in a number type, or a model in a number format. Cases are taken in turns from all ops, so
that each op is covered before --seconds are over. --jobs processes compile kernels in parallel.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import harness
import numpy as np
from random_models import MODEL_SHAPES, RandomModel, make_source, open_gpu_backend

from sporelm.backends.backend_registry import open_backend
from sporelm.backends.cuda.op_kernels import own_functions
from sporelm.engine import Request
from sporelm.evals.conformance.all_cases import CASES, sample_cases
from sporelm.evals.conformance.check import check_case, is_within_types
from sporelm.evals.conformance.conformance_case import Case

MODELS = {"story": ("f32", "q8_0"), "tiny": ("f32", "q4_k"), "tiny-moe": ("f32",), "tiny-delta": ("f32",)}
MODELS |= {"tiny-latent": ("f32",)}
MODEL_CONTEXT, MODEL_PROMPT, MODEL_TOKENS = 192, 80, 32  # the prompt is longer than a page
MAX_SHOWN_FAILURES = 20
START_SECONDS = 60  # of a process, beside those of its cases


def list_cases(ops: Sequence[str], *, every_case: bool) -> list[Case]:
    """Return the cases of ops, in turns from each op: first from ops with kernels, then from ops of plain torch."""
    groups: dict[str, list[Case]] = {}
    for case in CASES if every_case else sample_cases():
        if not ops or case.op in ops:
            groups.setdefault(case.op, []).append(case)
    kernels = own_functions()
    return [
        case
        for has_kernel in (True, False)
        for turn in zip_longest(*(group for op, group in groups.items() if (op in kernels) is has_kernel))
        for case in turn
        if case is not None
    ]


def check_cases(args: argparse.Namespace, dtype: str) -> Iterator[dict[str, Any]]:
    """Check this process's part of the cases, as far as the time suffices. Yield a row for each case."""
    number, count = map(int, args.part.split("/"))
    backend = open_backend("cuda", device=args.device, dtype=dtype)
    reference = open_backend("reference")
    began = perf_counter()
    for case in list_cases(args.ops, every_case=args.every_case)[number::count][: args.max_cases]:
        if perf_counter() - began > args.seconds:
            break
        if is_within_types(case, backend):
            row = check_case("cuda", case, backend, reference)
            yield {"op": case.op, "case": case.name, "state": row["state"], "difference": row["error"]}
            if row["state"] == "fails":
                harness.check_alive(args.device)
    backend.close()
    reference.close()


def run_jobs(args: argparse.Namespace, dtype: str) -> list[dict[str, Any]]:
    """Check the cases in several processes. Return a row for each case, and one for each process that failed."""
    words = [sys.executable, __file__, "--device", args.device, "--dtypes", dtype, "--seconds", str(args.seconds)]
    words += ["--every-case"] * args.every_case + ["--ops", ",".join(args.ops)] * bool(args.ops)
    words += ["--max-cases", str(args.max_cases)] * (args.max_cases is not None)
    with TemporaryDirectory() as folder:
        files = [Path(folder) / f"{number}.jsonl" for number in range(args.jobs)]
        errors = [Path(folder) / f"{number}.txt" for number in range(args.jobs)]
        processes = [
            subprocess.Popen(
                [*words, "--part", f"{number}/{args.jobs}", "--save", str(file)],
                stdout=subprocess.DEVNULL,
                stderr=error.open("wb"),
            )
            for number, (file, error) in enumerate(zip(files, errors, strict=True))
        ]
        rows = []
        deadline = perf_counter() + args.seconds + START_SECONDS
        for process, file, error in zip(processes, files, errors, strict=True):
            try:
                process.wait(max(1.0, deadline - perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            rows += harness.read_rows(file)
            if process.returncode:
                last = error.read_text(errors="replace").strip().rpartition("\n")[2] or "it took too long"
                rows.append({"op": "process", "case": "", "state": "fails", "difference": last[:300]})
    return rows


def report_cases(args: argparse.Namespace, report: harness.Report, dtype: str) -> None:
    """Add a row for each op, and one for each case that differs or fails."""
    began = perf_counter()
    rows = run_jobs(args, dtype) if args.jobs > 1 else list(check_cases(args, dtype))
    failures = [row for row in rows if row["state"] != "equal"]
    for row in failures[:MAX_SHOWN_FAILURES]:
        text = f"{row['state']}: {row['difference']}"
        report.add({"bench": report.bench, "name": f"{dtype} {row['op']} {row['case']}", "error": text})
    for op in sorted({row["op"] for row in rows}):
        states = [row["state"] for row in rows if row["op"] == op]
        counts = {"cases": len(states), "equal": states.count("equal")}
        report.add({"bench": report.bench, "name": f"{dtype} {op}", **counts})
    total = len(list_cases(args.ops, every_case=args.every_case))
    counts = {"cases": len(rows), "equal": len(rows) - len(failures), "of": total}
    report.add({"bench": report.bench, "name": f"{dtype} all ops", **counts, "seconds": perf_counter() - began})


def report_tokens(args: argparse.Namespace, report: harness.Report) -> None:
    """Add a row for each model in each number format."""
    models = {"mini": ("f32",), "mini-moe": ("f32",)} if args.tiny else MODELS
    for model, formats in models.items():
        for number_format in formats:
            with report.row(f"tokens {model} {number_format}") as row:
                row |= compare_tokens(args, model, number_format)
                if row["equal"] < row["tokens"]:
                    raise AssertionError(f"tokens differ from the CPU's after {row['equal']}: {row}")


def compare_tokens(args: argparse.Namespace, model: str, number_format: str) -> dict[str, Any]:
    """Return the number of tokens that both back-ends agree in, and the margin of the CPU's logits where they part."""
    prompt_length, num_tokens = (70, 3) if args.tiny else (MODEL_PROMPT, MODEL_TOKENS)
    source = make_source(MODEL_SHAPES[model], number_format)
    prompt = np.random.default_rng(1).integers(0, source.config.vocab, prompt_length).tolist()
    found = {}
    for name in ("cuda", "cpu"):
        if name == "cuda":
            backend = open_gpu_backend(args.device, "f32", max_streams=2, token_budget=128)
        else:
            backend = open_backend("cpu")
        opened = RandomModel(source, backend, context=MODEL_CONTEXT, streams=2, kv="f32")
        request = opened.engine.add(Request(prompt, max_tokens=num_tokens))
        opened.engine.run([request])
        found[name] = request.all_token_ids[prompt_length:]
        if name == "cpu":
            margin = find_margin(opened, prompt, found)
        opened.close()
        backend.close()
    equal = count_equal(found)
    row = {"tokens": num_tokens, "equal": equal}
    return row if equal == num_tokens else row | {"margin": margin}


def count_equal(found: dict[str, list[int]]) -> int:
    """Return the number of leading tokens that are equal."""
    pairs = list(zip(*found.values(), strict=True))
    return next((place for place, (first, second) in enumerate(pairs) if first != second), len(pairs))


def find_margin(opened: RandomModel, prompt: list[int], found: dict[str, list[int]]) -> float:
    """Return the difference of the two best logits at the first token that differs, as a share of the best one."""
    ids = [*prompt, *found["cpu"][: count_equal(found)]]
    last: list[np.ndarray] = []
    logits = opened.engine.logits(ids, lambda rows: last.append(rows[-1].copy()))
    for _ in logits:
        opened.engine.step()
    second, best = np.sort(last[-1])[-2:]
    return float((best - second) / abs(best))


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--dtypes", default="f32,bf16")
    parser.add_argument("--ops", type=lambda text: text.split(","), default=[])
    parser.add_argument("--only", default="cases,tokens")
    parser.add_argument("--every-case", action="store_true")
    parser.add_argument("--jobs", type=int, default=8, help="processes; 1: no further ones")
    parser.add_argument("--seconds", type=float, default=120.0, help="for the cases of a number type")
    parser.add_argument("--max-cases", type=int, help="of each process")
    parser.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    args = parser.parse_args()
    harness.check_device(args)
    report = harness.Report("conformance", args)
    if args.part != "0/1":
        for row in check_cases(args, args.dtypes):
            report.add({"bench": report.bench, "name": row["case"], **row})
        return 0
    if args.tiny:
        args.jobs, args.max_cases = min(args.jobs, 2), args.max_cases or 6
    if "tokens" in args.only.split(","):
        report_tokens(args, report)
    if "cases" in args.only.split(","):
        for dtype in args.dtypes.split(","):
            report_cases(args, report, dtype)
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
