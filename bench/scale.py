"""Simulate one model over many sockets, GPUs and machines, from measured and published figures.

Usage: python bench/scale.py COMMAND [options]; `COMMAND --help` lists them. docs/scale.md explains the model.

calibrate  measure steps on this machine, fit the cost model on some of one model, check it on the others
           --fit --check --points --repeat --threads --best --save --save-calibration
predict    the time of a step, or of a prompt, by what it is spent on: for a layout, a link and a processor
           --model --machine --tp --pp --micro-batches --all-reduce --batch --context --prompt, and a link: --link, or
           --messages (of bench/link_messages.py), or --latency-us and --gbit
record     serve a random load on this machine, and write each request's arrival, lengths and times
           --model --rate --seconds --prompt-median --output-median
compare    simulate a recorded load, and set the simulated times beside the measured ones
           --slowdown, and the options of predict
simulate   one replica under a recorded or a random load
           --trace (of record, or of `spore serve --trace`), or --rate --seconds --warmup; and the options of predict
fleet      machines, dollars and service for a number of users, and the limit that each choice meets first
           --users --interval --model --max-first-token --min-speed --gpu-stream --prefill-tokens --only --seconds
           --max-context --max-prompt --prompt-median --output-median --shared
links      the time of a decode step by the number of ranks and the link between them
           --model --batch --context

All take --json and --calibration.

Examples:
  python bench/scale.py calibrate --points bench/results/2026-11-27-scale-steps.csv    # fit again, measure nothing
  python bench/scale.py predict --model smollm2-135m:q4_1 --tp 2 --latency-us 40 --gbit 8 --batch 4 --context 256 --json
  python bench/scale.py fleet --users 10000 --json
"""

import argparse
import csv
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

from benchmark_script import ROOT, run_script

from sporelm.backends.cpu.tuning.peak_rates import measure_peak_rates
from sporelm.bench.scale.calibration import CalibrationResult, fit_efficiency, fit_link, summarize_errors
from sporelm.bench.scale.cost_model import (
    GPU_EFFICIENCY,
    CostModel,
    Efficiency,
    ParallelLayout,
    StepLoad,
)
from sporelm.bench.scale.fleet import FleetPlan, ServiceObjective, find_capacity
from sporelm.bench.scale.hardware import (
    LINKS,
    MACHINES,
    PROCESSORS,
    Link,
    Machine,
    Processor,
    find_preset,
)
from sporelm.bench.scale.model_size import ModelSize
from sporelm.bench.scale.request_trace import (
    LengthSpread,
    RequestMix,
    read_request_times,
    read_requests,
    write_request_times,
)
from sporelm.bench.scale.scale_tables import format_percent, format_table
from sporelm.bench.scale.simulation import Simulation, SimulationResult, make_limits, percentile
from sporelm.bench.scale.step_measurement import (
    COLUMNS,
    FITTED_CASES,
    HELD_OUT_CASES,
    Clock,
    MeasuredStep,
    measure_steps,
    prompt_case,
    read_steps,
    to_cells,
)
from sporelm.errors import RequestError

RESULTS = ROOT / "bench" / "results"
CALIBRATION = RESULTS / "2026-11-27-scale-calibration.json"
CPU_TOKEN_BUDGET = 512  # of a step, as the back-ends have it
GPU_TOKEN_BUDGET = 8192
FIT_MODEL = "smollm2-360m:q4_0"
CHECK_MODELS = ("smollm2-135m:q4_0", "qwen-0.5b:q4_0", "llama-1b:q4_0", "smollm2-360m:q8_0")
MIN_OP_SECONDS = 10e-6  # of a whole socket: the wait of its threads for each other, longer than that of two; assumed
SOCKET_STREAM = 0.8  # of a socket's bandwidth by its data sheet that STREAM reads; assumed
FLEET_CONTEXT = 8192


@dataclass(frozen=True)
class FleetChoice:
    """A way to serve the model: a machine, a number format, a layout of ranks."""

    label: str
    machine: str
    number_format: str
    layout: ParallelLayout
    max_batch: int = 256
    network: str = ""  # in place of the machine's own


CHOICES = (
    FleetChoice("8 x H100, TP 8, F16", "8xh100", "f16", ParallelLayout(8)),
    FleetChoice("8 x H100, 2 x TP 4, Q8_0", "8xh100", "q8_0", ParallelLayout(4)),
    FleetChoice("8 x H200, 2 x TP 4, F16", "8xh200", "f16", ParallelLayout(4)),
    FleetChoice("8 x A100, TP 8, F16", "8xa100", "f16", ParallelLayout(8)),
    FleetChoice("8 x L40S, TP 8, Q8_0, PCIe", "8xl40s", "q8_0", ParallelLayout(8)),
    FleetChoice("2 x EPYC 9654, TP 2, Q4_0", "2xepyc", "q4_0", ParallelLayout(2), 64),
    FleetChoice("4 hosts of 2 x EPYC, TP 2, PP 4, Q4_0, 25 GbE", "2xepyc", "q4_0", ParallelLayout(2, 4, 4), 64),
    FleetChoice("4 hosts of 2 x EPYC, TP 8, Q4_0, 100 GbE", "2xepyc", "q4_0", ParallelLayout(8), 64, "100gbe"),
)


# ---- models and processors


def load_calibration(path: Path) -> dict[str, Any]:
    """Return a calibration file. Raises RequestError."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        raise RequestError(
            f"{path}: not a calibration ({reason}). Write one with `calibrate --save-calibration`."
        ) from None


def make_processor(limits: dict[str, float], name: str) -> Processor:
    """Return this machine's processor from its measured peak rates."""
    floats = limits["f32_ops_s"]
    rates = {"f32": floats, "f16": floats, "int8": limits["int8_dot_ops_s"]}
    return Processor(name, 16e9, limits["stream_bytes_s"], rates, "measured")


def socket_efficiency(efficiency: Efficiency) -> Efficiency:
    """Return the efficiency of whole sockets, whose peaks are those of the data sheet, from that of this machine."""
    share = SOCKET_STREAM
    return replace(
        efficiency,
        stream=share * min(1.0, efficiency.stream),
        kv_stream=share * min(1.0, efficiency.kv_stream),
        rowwise=share * min(1.0, efficiency.rowwise),
        compute=min(1.0, efficiency.compute),
        attention=min(1.0, efficiency.attention),
        op_seconds=max(MIN_OP_SECONDS, efficiency.op_seconds),
    )


def parse_model(name: str) -> ModelSize:
    """Return the size of SHAPE:FORMAT. Raises RequestError."""
    shape, _, number_format = name.removeprefix("synthetic:").partition(":")
    return ModelSize.from_shape(shape, number_format or "q4_0")


def is_fitted(step: MeasuredStep, fit_model: str) -> bool:
    """Return whether a step is one of those on which the cost model is fitted."""
    return step.model == fit_model and step.case in FITTED_CASES


# ---- calibrate


def calibrate(args: argparse.Namespace) -> int:
    if args.points:
        steps = read_steps(args.points)
        about = load_calibration(args.calibration)
        limits = about["limits"]
    else:
        steps, limits, about = measure(args)
    steps = [replace(step, is_best=args.best) for step in steps]
    processor = make_processor(limits, about.get("machine", "this machine"))
    machine = Machine("this machine", processor, 1, LINKS["sockets"], LINKS["10gbe"])
    models = {name: CostModel(parse_model(name), machine) for name in dict.fromkeys(step.model for step in steps)}
    result = fit_efficiency(models, steps, lambda step: is_fitted(step, args.fit), CPU_TOKEN_BUDGET)
    about |= {
        "fitted_on": args.fit,
        "statistic": "shortest sample" if args.best else "median",
        "limits": limits,
        "efficiency": result.efficiency.to_json(),
        "errors": summarize(result, args.fit),
    }
    if args.save_calibration:
        args.save_calibration.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    show_calibration(args, about, result)
    return 0


def measure(args: argparse.Namespace) -> tuple[list[MeasuredStep], dict[str, float], dict[str, Any]]:
    """Return the steps of all models, the best peak rates that were measured between them, and their origin."""
    from sporelm.cli.bench import describe_run

    cases = (*FITTED_CASES, *HELD_OUT_CASES)
    steps: list[MeasuredStep] = []
    limits: dict[str, float] = {}
    about: dict[str, Any] = {}
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]
    command = shlex.join(["python", "bench/scale.py", *words])
    for name in (args.fit, *args.check):
        with open_model(name, args.threads) as llm:
            about = describe_run([], llm.backend.probe())
            about |= {"command": command, "threads": str(args.threads)}
            limits = best_limits(llm, limits)
            steps += measure_steps(llm.engine, name, cases, args.repeat, choose_clock(args.threads), announce)
            save_steps(args.save, about, steps)
            limits = best_limits(llm, limits)
            announce(f"{name}: {limits}")
    return steps, limits, about


def save_steps(path: Path | None, about: dict[str, Any], steps: Sequence[MeasuredStep]) -> None:
    """Write the measured steps, each with its origin."""
    if path is None:
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*about, *COLUMNS])
        writer.writerows([*about.values(), *to_cells(step)] for step in steps)


def open_model(name: str, threads: int) -> Any:
    """Return the LLM of a synthetic model."""
    from sporelm import LLM
    from sporelm.bench import synthetic_file

    return LLM(synthetic_file(f"synthetic:{name}"), threads=threads, max_batch=16, max_context=2304)


def choose_clock(threads: int) -> Clock:
    """Return the thread's own time if there is one thread: other programs then cost little."""
    return thread_time if threads == 1 else perf_counter


def best_limits(llm: Any, limits: dict[str, float]) -> dict[str, float]:
    """Return the better of the peak rates now and those before."""
    backend = llm.backend
    measured = measure_peak_rates(backend.compiler, backend.thread_pool, choose_clock(llm.threads))
    return {rate: max(value, limits.get(rate, 0.0)) for rate, value in measured.items()}


def announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def summarize(result: CalibrationResult, fit_model: str) -> dict[str, Any]:
    """Return the errors of the fitted steps, of held-out steps of the same model, and of each other model."""
    groups = {
        "fitted": result.errors(is_fitted=True),
        f"held out, {fit_model}": result.errors(is_fitted=False, model=fit_model),
    }
    others = dict.fromkeys(each.measured.model for each in result.predictions if each.measured.model != fit_model)
    groups |= {f"held out, {name}": result.errors(model=name) for name in others}
    groups["held out, all"] = result.errors(is_fitted=False)
    return {name: summarize_errors(errors) for name, errors in groups.items()}


def show_calibration(args: argparse.Namespace, about: dict[str, Any], result: CalibrationResult) -> None:
    rows = [
        {
            "model": each.measured.model,
            "case": each.measured.case.label,
            "ms": each.measured.seconds * 1e3,
            "predicted": each.seconds * 1e3,
            "error": each.error if args.json else format_percent(each.error),
            "use": "fitted" if each.is_fitted else "held out",
        }
        for each in result.predictions
    ]
    if args.json:
        print(json.dumps(about | {"steps": rows}, indent=2))
        return
    print(format_table(rows))
    print("\n" + format_table([{"steps": name, **errors} for name, errors in about["errors"].items()]))
    print("\n" + format_table([about["efficiency"]]))


# ---- predict


def predict(args: argparse.Namespace) -> int:
    model = make_cost_model(args)
    time = model.prompt(args.prompt, args.token_budget) if args.prompt else None
    if time is None:
        time = model.step(StepLoad.decode(args.batch, args.context))
    values = {"seconds": time.seconds, "parts": dict(time.parts)}
    if args.json:
        print(json.dumps(values, indent=2))
    else:
        print(format_table([{"seconds": time.seconds, **time.parts}]))
    return 0


def make_cost_model(args: argparse.Namespace) -> CostModel:
    """Return the cost model of `predict`, `compare` and `simulate`. Raises RequestError."""
    layout = ParallelLayout(args.tp, args.pp, args.micro_batches)
    if args.machine:
        find_preset("machine", args.machine, MACHINES)
        machine = MACHINES[args.machine]
        is_cpu = machine.processor is PROCESSORS["epyc-9654"]
        fitted = Efficiency.from_json(load_calibration(args.calibration)["efficiency"]) if is_cpu else GPU_EFFICIENCY
        efficiency = socket_efficiency(fitted) if is_cpu else fitted
    else:
        calibration = load_calibration(args.calibration)
        processor = make_processor(calibration["limits"], "this machine")
        machine = Machine("this machine", processor, args.ranks_per_machine or 1, LINKS["sockets"], LINKS["10gbe"])
        efficiency = Efficiency.from_json(calibration["efficiency"])
    if (link := parse_link(args)) is not None:
        machine = machine.with_link(link)
    model = parse_model(args.model)
    if args.kv_bytes:
        model = model.with_kv(args.kv_bytes)
    if args.machine and not is_cpu:
        model = replace(model, number_type="f16")  # the kernels of GPUs multiply in f16, after they expand blocks
    return CostModel(model, machine, layout, efficiency, args.all_reduce, args.ranks_per_machine)


def parse_link(args: argparse.Namespace) -> Link | None:
    """Return the link of the options: named, fitted on timed messages, or given; None if there is none."""
    if args.messages:
        return fit_link("measured link", [(size, seconds) for size, seconds in json.loads(args.messages.read_text())])
    if args.latency_us is not None or args.gbit is not None:
        if args.latency_us is None or args.gbit is None:
            raise RequestError("link: --latency-us and --gbit go together. Give both.")
        return Link("given link", args.latency_us * 1e-6, args.gbit * 1e9 / 8)
    if args.link:
        find_preset("link", args.link, LINKS)
        return LINKS[args.link]
    return None


# ---- record, compare, simulate


def make_mix(args: argparse.Namespace) -> RequestMix:
    """Return the mix of lengths of the options."""
    return RequestMix(
        LengthSpread(args.prompt_median, args.prompt_sigma, 16, args.max_prompt),
        LengthSpread(args.output_median, args.output_sigma, 8, args.max_output),
        args.shared,
    )


def record(args: argparse.Namespace) -> int:
    from sporelm.bench.scale.load_recording import record_load

    requests = make_mix(args).draw(args.rate, args.seconds, args.seed)
    clock = choose_clock(args.threads)
    probe_cases = (*FITTED_CASES[:1], prompt_case(256))
    with open_model(args.model, args.threads) as llm:
        measure_steps(llm.engine, args.model, FITTED_CASES, 1, clock)  # programs are compiled, and pages touched
        times = record_load(llm.engine, requests, clock)
        probes = measure_steps(llm.engine, args.model, probe_cases, 3, clock)
    write_request_times(args.file, times)
    print(format_table([{"requests": len(times), **{each.case.label + " (s)": each.seconds for each in probes}}]))
    return 0


def compare(args: argparse.Namespace) -> int:
    times = read_request_times(args.file)
    model = make_cost_model(args)
    if args.slowdown != 1:
        model = slow_down(model, args.slowdown)
    limits = make_limits(model, max_batch=args.max_batch, token_budget=args.token_budget, max_context=args.max_context)
    result = Simulation(model, limits).run([each.request for each in times])
    measured_first = [each.first_token_seconds for each in times]
    spans = [
        (each.last_token_seconds - each.first_token_seconds) / (each.request.output_tokens - 1)
        for each in times
        if each.request.output_tokens > 1
    ]
    simulated = [1 / speed for each in result.requests if (speed := each.tokens_per_second) is not None]
    first = [each.time_to_first_token for each in result.requests]
    rows = []
    for name, real, drawn in (("time to first token", measured_first, first), ("time per token", spans, simulated)):
        for percent in (50, 90, 99):
            was, now = percentile(real, percent), percentile(drawn, percent)
            error = now / was - 1
            rows.append(
                {
                    "figure": f"{name}, p{percent}",
                    "measured_ms": was * 1e3,
                    "simulated_ms": now * 1e3,
                    "error": error if args.json else format_percent(error),
                }
            )
    print(json.dumps(rows, indent=2) if args.json else format_table(rows))
    return 0


def slow_down(model: CostModel, factor: float) -> CostModel:
    """Return a model whose processor and engine are slower by a factor, as beside other programs."""
    old = model.efficiency
    values = {name: getattr(old, name) / factor for name in ("compute", "stream", "attention", "kv_stream", "rowwise")}
    values |= {name: getattr(old, name) * factor for name in ("op_seconds", "step_seconds", "sequence_seconds")}
    return model.with_efficiency(replace(old, **values))


def simulate(args: argparse.Namespace) -> int:
    model = make_cost_model(args)
    limits = make_limits(model, max_batch=args.max_batch, token_budget=args.token_budget, max_context=args.max_context)
    requests = read_requests(args.trace) if args.trace else make_mix(args).draw(args.rate, args.seconds, args.seed)
    result = Simulation(model, limits).run(requests, warmup_seconds=args.warmup)
    print(json.dumps(result.to_json(), indent=2) if args.json else format_table([flatten(result)]))
    return 0


def flatten(result: SimulationResult) -> dict[str, Any]:
    """Return the figures of a simulation as one table row."""
    return {
        "requests": len(result.requests),
        "TTFT p50 (s)": result.first_token_percentile(50),
        "TTFT p99 (s)": result.first_token_percentile(99),
        "user tok/s p50": result.speed_percentile(50),
        "slowest 1 %": result.speed_percentile(1),
        "output tok/s": result.num_output_tokens / result.seconds if result.seconds else 0.0,
        "running": result.max_running,
        "waiting": result.max_waiting,
        "KV pages": f"{result.max_page_share:.0%}",
        "preemptions": result.num_preemptions,
    }


# ---- fleet


def fleet(args: argparse.Namespace) -> int:
    calibration = load_calibration(args.calibration)
    fitted = socket_efficiency(Efficiency.from_json(calibration["efficiency"]))
    objective = ServiceObjective(args.max_first_token, args.min_speed)
    plans = {}
    for choice in CHOICES:
        if args.only and args.only.lower() not in choice.label.lower():
            continue
        model = choose_model(args.model, choice, fitted, args.gpu_stream)
        plans[choice.label] = plan_choice(args, choice, model, objective)
    if args.json:
        print(json.dumps({label: plan.to_json() for label, plan in plans.items()}, indent=2))
        return 0
    print(format_table([fleet_row(label, plan) for label, plan in plans.items()]))
    return 0


def choose_model(shape: str, choice: FleetChoice, fitted: Efficiency, gpu_stream: float) -> CostModel:
    """Return the cost model of a choice."""
    machine = MACHINES[choice.machine]
    model = ModelSize.from_shape(shape, choice.number_format)
    if choice.network:
        machine = replace(machine, network=LINKS[choice.network])
    if machine.processor is PROCESSORS["epyc-9654"]:
        return CostModel(model, machine, choice.layout, fitted)
    efficiency = replace(GPU_EFFICIENCY, stream=gpu_stream)
    return CostModel(replace(model, number_type="f16"), machine, choice.layout, efficiency)


def plan_choice(
    args: argparse.Namespace, choice: FleetChoice, model: CostModel, objective: ServiceObjective
) -> FleetPlan:
    """Return the machines for all users with one choice."""
    is_cpu = model.machine.processor is PROCESSORS["epyc-9654"]
    budget = CPU_TOKEN_BUDGET if is_cpu else GPU_TOKEN_BUDGET
    limits = make_limits(
        model,
        max_batch=choice.max_batch,
        token_budget=budget,
        max_context=args.max_context,
        prefill_tokens=args.prefill_tokens,
    )
    capacity = find_capacity(
        lambda: Simulation(model, limits),
        make_mix(args),
        objective,
        seconds=args.seconds,
        warmup_seconds=args.seconds / 4,
        start_rate=0.05 if is_cpu else 2.0,
        seed=args.seed,
        announce=lambda line: print(f"{choice.label}: {line}", file=sys.stderr, flush=True),
    )
    machines = model.layout.num_ranks / model.num_ranks_here
    return FleetPlan(args.users, args.interval, machines, model.machine.dollars_per_hour, capacity)


def fleet_row(label: str, plan: FleetPlan) -> dict[str, Any]:
    capacity, result = plan.capacity, plan.capacity.result
    return {
        "machines and layout": label,
        "users a replica": round(capacity.requests_per_second * plan.interval_seconds),
        "replicas": plan.num_replicas,
        "machines": plan.num_machines,
        "$ a month": plan.dollars_per_month,
        "tok/s a user, p50": result.speed_percentile(50) if result else None,
        "slowest 1 %": result.speed_percentile(1) if result else None,
        "TTFT p50 (s)": result.first_token_percentile(50) if result else None,
        "TTFT p99 (s)": result.first_token_percentile(99) if result else None,
        "KV pages": f"{result.max_page_share:.0%}" if result else None,
        "first limit": capacity.limit,
    }


# ---- links


def links(args: argparse.Namespace) -> int:
    calibration = load_calibration(args.calibration)
    fitted = socket_efficiency(Efficiency.from_json(calibration["efficiency"]))
    rows = []
    for machine_name, number_format, names in (
        ("8xh100", "f16", ("nvlink4", "pcie5", "rdma400", "100gbe")),
        ("2xepyc", "q4_0", ("sockets", "rdma400", "100gbe", "10gbe")),
    ):
        for name in names:
            row: dict[str, Any] = {"processor": MACHINES[machine_name].processor.name, "link": LINKS[name].name}
            for tp in (1, 2, 4, 8, 16):
                choice = FleetChoice("", machine_name, number_format, ParallelLayout(tp))
                model = choose_model(args.model, choice, fitted, GPU_EFFICIENCY.stream)
                model = replace(model, machine=model.machine.with_link(LINKS[name]))
                time = model.step(StepLoad.decode(args.batch, args.context))
                row[f"TP {tp} (ms)"] = time.seconds * 1e3
                row[f"links {tp}"] = f"{time.parts['links'] / time.seconds:.0%}"
            rows.append(row)
    print(json.dumps(rows, indent=2) if args.json else format_table(rows))
    return 0


# ---- options


def add_mix(parser: argparse.ArgumentParser, prompt: float, output: float, longest: tuple[int, int]) -> None:
    parser.add_argument("--prompt-median", type=float, default=prompt, help=f"tokens; default: {prompt:g}")
    parser.add_argument("--prompt-sigma", type=float, default=1.0, help="of the logarithm; default: 1.0")
    parser.add_argument("--max-prompt", type=int, default=longest[0], help=f"tokens; default: {longest[0]}")
    parser.add_argument("--output-median", type=float, default=output, help=f"tokens; default: {output:g}")
    parser.add_argument("--output-sigma", type=float, default=0.7, help="of the logarithm; default: 0.7")
    parser.add_argument("--max-output", type=int, default=longest[1], help=f"tokens; default: {longest[1]}")
    parser.add_argument("--shared", type=int, default=0, help="tokens that begin all prompts; default: 0")
    parser.add_argument("--seed", type=int, default=0)


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=FIT_MODEL, metavar="SHAPE:FORMAT", help=f"default: {FIT_MODEL}")
    parser.add_argument("--machine", help=f"a preset in place of this machine: {', '.join(MACHINES)}")
    parser.add_argument("--tp", type=int, default=1, help="ranks of a tensor-parallel group")
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step in a pipeline")
    parser.add_argument("--ranks-per-machine", type=int, default=0, help="default: one on each processor")
    parser.add_argument("--all-reduce", choices=("gather", "ring", "tree", "best"), default="best")
    parser.add_argument("--link", help=f"between all ranks: {', '.join(LINKS)}")
    parser.add_argument("--latency-us", type=float, help="of a message, with --gbit: a measured link")
    parser.add_argument("--gbit", type=float, help="bandwidth in Gbit/s")
    parser.add_argument("--messages", type=Path, help="JSON list of [bytes, seconds]: the link is fitted on them")
    parser.add_argument("--kv-bytes", type=float, default=0.0, help="of a number in the KV cache; default: 2")
    parser.add_argument("--token-budget", type=int, default=CPU_TOKEN_BUDGET, help="of a step")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--max-context", type=int, default=2304)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, run in COMMANDS.items():
        each = commands.add_parser(name, help=(__doc__ or "").split(f"\n{name} ")[1].split("\n")[0].strip())
        each.set_defaults(run=run)
        each.add_argument("--json", action="store_true", help="print JSON in place of a table")
        each.add_argument("--calibration", type=Path, default=CALIBRATION, help=f"default: {CALIBRATION.name}")
        if name == "calibrate":
            each.add_argument("--fit", default=FIT_MODEL, metavar="SHAPE:FORMAT", help="the model to fit on")
            each.add_argument("--check", nargs="*", default=CHECK_MODELS, metavar="SHAPE:FORMAT", help="the others")
            each.add_argument("--points", type=Path, help="file of an earlier --save: measure nothing")
            each.add_argument("--repeat", type=int, default=5, help="samples of a case; default: 5")
            each.add_argument("--threads", type=int, default=1, help="default: 1, timed by the thread's own clock")
            each.add_argument("--best", action="store_true", help="use the shortest samples, not medians")
            each.add_argument("--save", type=Path, help="CSV file for the measured steps")
            each.add_argument("--save-calibration", type=Path, help="JSON file for the fit")
        if name in ("predict", "compare", "simulate"):
            add_model(each)
        if name == "predict":
            each.add_argument("--batch", type=int, default=1)
            each.add_argument("--context", type=int, default=128, help="positions that each sequence holds")
            each.add_argument("--prompt", type=int, default=0, help="tokens of a prompt, in place of a decode step")
        if name in ("record", "compare"):
            each.add_argument("file", type=Path, help="requests with their times, a JSON object a line")
        if name == "compare":
            each.add_argument("--slowdown", type=float, default=1.0, help="factor of the processor's times; default: 1")
        if name == "record":
            each.add_argument("--model", default=FIT_MODEL)
            each.add_argument("--threads", type=int, default=1, help="default: 1, timed by the thread's own clock")
            add_load(each, rate=1.0, seconds=60)
            add_mix(each, 100, 50, (1024, 256))
        if name == "simulate":
            each.add_argument("--trace", type=Path, help="requests of `record` or of `spore serve --trace`")
            each.add_argument("--warmup", type=float, default=0.0, help="seconds that percentiles leave out")
            add_load(each, rate=1.0, seconds=300)
            add_mix(each, 500, 200, (6000, 1500))
        if name == "fleet":
            each.add_argument("--users", type=int, default=10_000)
            each.add_argument("--interval", type=float, default=120.0, help="seconds between two requests of a user")
            each.add_argument("--model", default="llama-70b", metavar="SHAPE")
            each.add_argument(
                "--max-first-token", type=float, default=10.0, help="seconds, 99th percentile; default: 10"
            )
            each.add_argument("--min-speed", type=float, default=5.0, help="tok/s of the slowest 1 %%; default: 5")
            each.add_argument(
                "--gpu-stream", type=float, default=GPU_EFFICIENCY.stream, help="assumed share; default: 0.75"
            )
            each.add_argument("--only", help="choices whose label has this text")
            each.add_argument("--prefill-tokens", type=int, help="of prompts in a step with answers; default: measured")
            each.add_argument("--max-context", type=int, default=FLEET_CONTEXT, help=f"default: {FLEET_CONTEXT}")
            each.add_argument("--seconds", type=float, default=240.0, help="of arrivals in each simulation")
            add_mix(each, 500, 200, (6000, 1500))
        if name == "links":
            each.add_argument("--model", default="llama-70b", metavar="SHAPE")
            each.add_argument("--batch", type=int, default=16)
            each.add_argument("--context", type=int, default=1000)
    return parser


def add_load(parser: argparse.ArgumentParser, rate: float, seconds: float) -> None:
    parser.add_argument("--rate", type=float, default=rate, help=f"requests a second; default: {rate:g}")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"of arrivals; default: {seconds:g}")


COMMANDS = {
    "calibrate": calibrate,
    "predict": predict,
    "record": record,
    "compare": compare,
    "simulate": simulate,
    "fleet": fleet,
    "links": links,
}


def main() -> int:
    args = make_parser().parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    run_script(main)
