"""Steps of two ranks in two network namespaces over gloo, beside the predictions of the cost model of bench/scale.py.

Usage: python bench/gloo_steps.py [--fit MODEL,..] [--check MODEL,..] [--mbit 0,1000] [--repeat 3] [--save FILE]
                                  [--points FILE] [--json]

Linux, as root, with `ip` and `tc` (iproute2): the namespaces are joined by a veth pair, which --mbit slows down (0: it
is as fast as it gets). Needs the extra `distributed`. Per network it times

collectives  what a step calls: the arrays of both ranks padded and gathered by gloo, then added in rank order, on which
             latency and bandwidth are fitted
steps        of one thread a rank, by the wall clock

The processor's efficiency is fitted on some steps of two models on the first network. All other steps are predicted:
other loads, other models, and all steps of the other networks: there only the collectives are fitted. Each host has
a core, which other programs get only while it waits (SCHED_FIFO). --points fits again on a file that --save wrote, and
measures nothing.

Example: python bench/gloo_steps.py --points bench/results/2026-11-27-gloo-steps.json
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from benchmark_script import ROOT, describe_script, make_parser, run_script

from network_namespaces import NetworkHost, linked_hosts, why_unavailable
from sporelm import ops
from sporelm.bench.scale.calibration import CalibrationResult, fit_efficiency, fit_link, summarize_errors
from sporelm.bench.scale.cost_model import CostModel, ParallelLayout
from sporelm.bench.scale.hardware import Link, Machine, Processor
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.scale_tables import format_percent, format_table
from sporelm.bench.scale.step_measurement import (
    MeasuredStep,
    StepCase,
    decode_case,
    measure_steps,
    prompt_case,
)
from sporelm.engine.ranks.transport import read_or_create_token

FIT_MODELS = "smollm2-360m:q4_0,llama-1b:q4_0"  # of two sizes: one cannot tell what a layer costs beside its weights
CHECK_MODELS = "smollm2-135m:q4_0,qwen-0.5b:q4_0"
FITTED_CASES = (decode_case(1, 128), decode_case(4, 128), decode_case(8, 128), decode_case(1, 768), prompt_case(256))
HELD_OUT_CASES = (decode_case(2, 128), decode_case(1, 384), prompt_case(64), prompt_case(512))
SIZES = (256, 2304, 8192, 36_864, 131_072, 589_824, 2 << 20, 4 << 20)  # bytes of an array; every other one is fitted
TOKEN_BUDGET = 512
PORT = 7100
OPTIONS: dict[str, Any] = {"threads": 1, "max_batch": 16, "max_context": 1280}


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--fit", metavar="MODEL,..", help=f"SHAPE:FORMAT; default: {FIT_MODELS}, or those of --points")
    parser.add_argument("--check", default=CHECK_MODELS, metavar="MODEL,..", help=f"default: {CHECK_MODELS}")
    parser.add_argument("--mbit", default="0,1000", metavar="N,..", help="rates of the link; default: 0,1000")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="samples of each case; default: 3")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write everything measured, and the fit, as JSON")
    parser.add_argument("--points", type=Path, metavar="FILE", help="fit on a saved file")
    parser.add_argument("--role", choices=("collectives", "steps"), help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- in a namespace


def run_collectives(rank: int, address: str, repeat: int) -> None:
    """Time all_reduce of arrays of all sizes as one of two ranks. Addresses go through standard input and output."""
    from sporelm.distributed.torch import Rendezvous, TorchGroup

    store, found = Rendezvous(), []

    def connect() -> None:
        found.append(TorchGroup.connect_gloo(store, rank, 2, address))

    thread = threading.Thread(target=connect)
    thread.start()
    print(json.dumps({key: b64encode(value).decode() for key, value in store.own().items()}), flush=True)
    store.add_all({key: b64decode(value) for key, value in json.loads(sys.stdin.readline()).items()})
    thread.join()
    (group,) = found
    times = []
    for nbytes in SIZES:
        array = np.ones((1, nbytes // 4), np.float32)
        samples = []
        for turn in range(20 * repeat + 5):
            start = perf_counter()
            array = ops.all_reduce.reference(array, group=group) / 2
            if turn >= 5:
                samples.append(perf_counter() - start)
        times.append([nbytes, median(samples), float(np.percentile(samples, 90))])
    print(json.dumps(times), flush=True)
    group.close()


def run_steps(model: str, options: dict[str, Any], repeat: int) -> None:
    """Measure steps as rank 0, whose worker joins."""
    from sporelm import LLM
    from sporelm.bench import synthetic_file

    cases = (*FITTED_CASES, *HELD_OUT_CASES)
    with LLM(synthetic_file(f"synthetic:{model}"), tp=2, remote_ranks=1, **options, **OPTIONS) as llm:
        limits = llm.backend.measure_limits()
        steps = measure_steps(llm.engine, model, cases, repeat, perf_counter, announce)
    print(json.dumps({"limits": limits, "steps": [[*case_cells(each.case), list(each.samples)] for each in steps]}))


def case_cells(case: StepCase) -> list[Any]:
    return [case.kind, case.batch, case.context, case.tokens]


def announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- the process that starts the others


def start(host: NetworkHost, cleanup: ExitStack, words: Sequence[object], core: int) -> "subprocess.Popen[str]":
    """Start a program in a namespace, on a core of its own before other programs; it is killed at the end."""
    command = host.words("taskset", "-c", core, "chrt", "--fifo", 1, sys.executable, *words)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    cleanup.callback(process.wait)
    cleanup.callback(process.kill)
    return process


def cores() -> list[int]:
    """Return the core of each host."""
    return sorted(os.sched_getaffinity(0))[:2]


def read_json(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("gloo_steps: a process has ended early")
    return json.loads(line)


def time_collectives(hosts: Sequence[NetworkHost], repeat: int) -> list[list[float]]:
    """Return [bytes, median seconds, 90th percentile] of all_reduce between the hosts."""
    options_of_hosts = [[rank, host.address, repeat] for rank, host in enumerate(hosts)]
    with ExitStack() as cleanup:
        processes = [
            start(host, cleanup, [__file__, "--role", "collectives", "--options", json.dumps(options)], core)
            for host, core, options in zip(hosts, cores(), options_of_hosts, strict=True)
        ]
        addresses = [read_json(process) for process in processes]
        for process, other in zip(processes, reversed(addresses), strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(other) + "\n")
            process.stdin.flush()
        times: list[list[float]] = next(read_json(process) for process in processes)
    return times


def time_steps(hosts: Sequence[NetworkHost], model: str, repeat: int) -> dict[str, Any]:
    """Return the peak rates and the steps of a model on two ranks."""
    first, second = hosts
    with TemporaryDirectory() as folder, ExitStack() as cleanup:
        address, token = f"{first.address}:{PORT}", f"{folder}/token"
        read_or_create_token(Path(token))
        options = {"rank_listen": address, "rank_token_file": token}
        rank0 = start(
            first, cleanup, [__file__, "--role", "steps", "--options", json.dumps([model, options, repeat])], cores()[0]
        )
        code = "import sys; from sporelm.cli.main import main; sys.exit(main())"
        start(second, cleanup, ["-c", code, "worker", "--join", address, "--token-file", token], cores()[1])
        found: dict[str, Any] = read_json(rank0)
    return found


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return everything that was measured, by network."""
    if reason := why_unavailable():
        raise SystemExit(f"gloo_steps: {reason}")
    from sporelm.bench import synthetic_file

    fitted_on = args.fit or FIT_MODELS
    models = [*fitted_on.split(","), *args.check.split(",")]
    for model in models:
        synthetic_file(f"synthetic:{model}")
    found: dict[str, Any] = {
        **describe_script(),
    }
    found |= {"fitted_on": fitted_on, "models": models, "load_before": os.getloadavg()[0], "networks": {}}
    with linked_hosts() as hosts:
        for rate in map(float, args.mbit.split(",")):
            for host in hosts:
                host.limit_rate(rate)
            network: dict[str, Any] = {"collectives": time_collectives(hosts, args.repeat), "models": {}}
            for model in models:
                network["models"][model] = time_steps(hosts, model, args.repeat)
            network["collectives_after"] = time_collectives(hosts, args.repeat)
            found["networks"][f"{rate:g} Mbit/s" if rate else "unlimited"] = network
    found["load_after"] = os.getloadavg()[0]
    return found


# ---- fit


def fit(found: dict[str, Any]) -> tuple[CalibrationResult, dict[str, Link]]:
    """Fit the links on collectives, and the efficiency on steps of the first network; predict all steps."""
    rates: dict[str, float] = {}
    for network in found["networks"].values():
        for each in network["models"].values():
            rates |= {name: max(value, rates.get(name, 0.0)) for name, value in each["limits"].items()}
    floats = rates["f32_ops_s"]
    processor = Processor("", 16e9, rates["stream_bytes_s"], {"f32": floats, "int8": rates["int8_dot_ops_s"]})
    links, models, steps = {}, {}, []
    for name, network in found["networks"].items():
        links[name] = link = fit_link(name, join_times(network)[::2])
        machine = Machine("two namespaces", processor, 1, link, link)
        for model, measured in network["models"].items():
            label = f"{model}, {name}"
            size = ModelSize.from_shape(*model.split(":"))
            models[label] = CostModel(size, machine, ParallelLayout(tp=2), all_reduce="gather")
            steps += [MeasuredStep(label, StepCase(*cells), tuple(samples)) for *cells, samples in measured["steps"]]
    network = next(iter(found["networks"]))
    fitted_on = [f"{model}, {network}" for model in found["fitted_on"].split(",")]
    return fit_efficiency(
        models, steps, lambda step: step.model in fitted_on and step.case in FITTED_CASES, TOKEN_BUDGET
    ), links


def join_times(network: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the times of collectives, the mean of those before and after the steps."""
    pairs = zip(network["collectives"], network["collectives_after"], strict=True)
    return [(before[0], (before[1] + after[1]) / 2) for before, after in pairs]


def summarize(found: dict[str, Any], result: CalibrationResult, links: dict[str, Link]) -> dict[str, Any]:
    """Return the errors of links and steps."""
    errors: dict[str, Any] = {"fitted": summarize_errors(result.errors(is_fitted=True))}
    for label in dict.fromkeys(each.measured.model for each in result.predictions):
        errors[f"held out, {label}"] = summarize_errors(result.errors(is_fitted=False, model=label))
    others = [
        each for each in result.predictions if each.measured.model.split(",")[0] not in found["fitted_on"].split(",")
    ]
    for network in found["networks"]:
        for kind in ("decode", "prefill"):
            chosen = [each for each in others if each.measured.model.endswith(network)]
            errors[f"other models, {network}, {kind}"] = summarize_errors(
                [each.error for each in chosen if each.measured.case.kind == kind]
            )
    fitted_links = {}
    for name, link in links.items():
        times = join_times(found["networks"][name])[1::2]
        fitted_links[name] = {
            "latency_us": link.latency_seconds * 1e6,
            "gbit": link.bytes_per_second * 8 / 1e9,
            "held_out_errors": [link.all_gather(size, 2) / seconds - 1 for size, seconds in times],
        }
    return {"links": fitted_links, "efficiency": result.efficiency.to_json(), "errors": errors}


def show(result: CalibrationResult, summary: dict[str, Any]) -> None:
    rows = [
        {
            "model": each.measured.model,
            "case": each.measured.case.label,
            "ms": each.measured.seconds * 1e3,
            "predicted": each.seconds * 1e3,
            "error": format_percent(each.error),
            "use": "fitted" if each.is_fitted else "held out",
        }
        for each in result.predictions
    ]
    links = [
        {**values, "network": name, "held_out_errors": " ".join(map(format_percent, values["held_out_errors"]))}
        for name, values in summary["links"].items()
    ]
    for table in (rows, links, [{"steps": name, **each} for name, each in summary["errors"].items()]):
        print(format_table(table) + "\n")
    print(format_table([summary["efficiency"]]))


def main() -> int:
    args = parse_arguments()
    if args.role:
        run = run_collectives if args.role == "collectives" else run_steps
        run(*args.options)
        return 0
    found = json.loads(args.points.read_text(encoding="utf-8")) if args.points else measure(args)
    found["fitted_on"] = args.fit or found["fitted_on"]
    result, links = fit(found)
    summary = summarize(found, result, links)
    if args.save:
        args.save.write_text(json.dumps({**found, **summary}, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps({**found, **summary}))
    else:
        show(result, summary)
    return 0


if __name__ == "__main__":
    run_script(main)
