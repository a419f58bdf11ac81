"""`spore info`: what a model is, what memory it needs, and how fast it can be here."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import labelled, terminal_width
from sporelm.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from sporelm.bench.estimate import Estimate

LABEL = 15  # columns before the text of a line
MIN_MEDIAN_SHARE = 0.8  # of the best read; on an idle machine the median is above it


def parser() -> Parser:
    made = Parser(
        "info",
        "Show what a model is (architecture, parameters, size, number format, context, vocabulary, chat template), the "
        "memory that it needs at a context and a batch, whether that fits this machine, and an estimate of its speed: "
        "memory bandwidth, the best of several reads now, divided by the bytes read for a token. The model is neither "
        "loaded nor downloaded.",
        "[MODEL] [options]",
        [
            "spore info",
            "spore info model.gguf --context 32768 --batch 4",
            "spore info hf:owner/name:Q4_K_M --kv f32 --no-speed --json",
        ],
    )
    options.add_model(made)
    made.add_argument(
        "--context", type=int, metavar="N", help="positions of each sequence; default: the model's own, 8192 at most"
    )
    made.add_argument("--batch", type=int, default=1, metavar="B", help="sequences that run together; default: 1")
    made.add_argument(
        "--kv",
        choices=("f16", "f32", "q8_0"),
        metavar="TYPE",
        help="numbers of the KV cache; default: f32 for f32 weights, else f16",
    )
    made.add_argument("--backend", metavar="NAME", help="cpu, torch or reference; default: cpu (SPORE_BACKEND)")
    made.add_argument("--device", metavar="D", default="cpu", help="device of the back-end; default: cpu")
    made.add_argument("--threads", type=int, metavar="N", help="default: the cores that affinity and cgroup leave")
    made.add_argument("--no-speed", action="store_true", help="do not measure the bandwidth (about a second)")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.tools.describe import describe
    from sporelm.weights import store

    for name in ("context", "batch"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}: it must be at least 1")
    options.check_threads(args.threads)
    path = store.resolve(args.model, fetch=False)
    report: dict[str, Any] = {"model": args.model or store.DEFAULT, "path": str(path)} | describe(path).as_json()
    report |= estimates(path, args)
    if args.json:
        from sporelm.cli.gguf_inputs import print_json

        print_json(report)
    else:
        print_report(report)


def estimates(path: "Path", args: argparse.Namespace) -> dict[str, Any]:
    """Memory and speed, or why the model cannot be run here."""
    from sporelm import settings
    from sporelm.api.loading import open_device
    from sporelm.api.machine import choose_threads
    from sporelm.bench.estimate import Estimate
    from sporelm.models import open_model

    nothing = {"runs": False, "memory": None, "speed": None}
    try:
        source = open_model(path)
    except ModelError as error:
        return nothing | {"reason": str(error)}
    name = args.backend or settings.BACKEND.value
    try:
        backend = open_device(name, args.device, choose_threads(args.threads))
        try:
            estimate = Estimate(source, backend, args.kv)
            memory = estimate.memory(args.context, args.batch)
            decodes = not source.family.reads  # an encoder is bound by what it computes
            speed = None if args.no_speed or not decodes else speeds(estimate, memory.context, args.batch)
            return {"runs": True, "backend": name, "memory": memory.as_json(), "speed": speed}
        except ModelError as error:
            return nothing | {"reason": str(error)}
        finally:
            backend.close()
    finally:
        source.close()


def speeds(estimate: "Estimate", context: int, batch: int) -> dict[str, Any]:
    """Bandwidth measured now, and the tokens a second that it allows: alone, at the end of the context, together."""
    from sporelm.api.machine import last_level_cache_bytes, load_average, usable_cores

    if sys.stderr.isatty():
        message = "spore: measuring the memory's bandwidth"[: (terminal_width(sys.stderr) or 80) - 1]
        sys.stderr.write(f"{message}\r")
    load = load_average()  # before the reads, which add to it
    machine = estimate.backend.limits()
    if sys.stderr.isatty():
        sys.stderr.write(" " * len(message) + "\r")
    cases = [(1, 0), (1, context - 1)] + ([(batch, 0), (batch, context - 1)] if batch > 1 else [])
    experts = estimate.config.experts
    chosen = experts and {
        "count": experts.count,
        "used": experts.used,
        "read_bytes": round(estimate.work.read_bytes(1)),
    }
    return {
        "stream_bytes_s": machine["stream_bytes_s"],
        "stream_median_bytes_s": machine["stream_median_bytes_s"],
        "load_average": round(load, 2),
        "cores": usable_cores(),
        "cache_bytes": last_level_cache_bytes(),
        "experts": chosen,
        "decode": [estimate.decode(machine, *case).as_json() for case in cases],
    }


def print_report(report: dict[str, Any]) -> None:
    """The report for a person."""
    from sporelm.cli.gguf_text import bytes_text, count_text, plain

    def say(name: str, value: object) -> None:
        print_labelled(name, plain(str(value)))

    def known(value: object, unit: str) -> str:
        return f"{value} {unit}" if value is not None else "not said"

    say("model", report["model"])
    say("path", report["path"])
    say("architecture", report["architecture"] or "not said")
    say("parameters", count_text(report["parameters"]))
    say("size", f"{bytes_text(report['bytes'])}, {report['quantization']}, {report['bits_per_weight']} bits per weight")
    say("context", known(report["context_length"], "positions"))
    say("vocabulary", known(report["vocabulary"], "tokens"))
    say("chat template", "yes" if report["chat_template"] else "no")
    if not report["runs"]:
        say("runs here", f"no: {report['reason']}")
        return
    print_memory(report["memory"], report["backend"])
    if report["speed"] is not None:
        print_speed(report["speed"], report["memory"]["weights"])


def print_labelled(label: str, text: str) -> None:
    """Print text beside its label, or below it where the terminal is too narrow."""
    print("\n".join(labelled(label, text, LABEL, terminal_width())))


def print_figure(title: str, figure: str) -> None:
    """Print a figure of those that a labelled line sums up."""
    line, width = f"{'':<{LABEL + 2}}{title:<24}{figure}", terminal_width()
    if width is None or len(line) <= width:
        print(line)
    else:
        print("\n".join(labelled(f"  {title}", figure.strip(), len(title) + 4, width)))


def print_memory(memory: dict[str, Any], backend: str) -> None:
    """What running takes, part by part."""
    from sporelm.cli.gguf_text import bytes_text

    sequences = f"{memory['batch']} x " if memory["batch"] > 1 else ""
    positions = f"{sequences}{memory['context']} positions on {backend}"
    print_labelled("memory", f"{bytes_text(memory['total'])} for {positions}")
    titles = {
        "weights": "weights",
        "kv": f"keys and values, {memory['kv_type']}",
        "states": "recurrent states",
        "step": "values of a step",
        "tables": "rotary table",
        "program": "program and tokenizer",
    }
    for key, title in titles.items():
        if memory[key] or key not in ("kv", "states", "tables"):
            print_figure(title, f"{bytes_text(memory[key]):>10}")
    if memory["fits"] is not None:
        answer = "yes" if memory["fits"] else "no: a smaller --context, or a more strongly quantized model, needs less"
        print_labelled("fits", f"{answer} ({bytes_text(memory['available'])} are available)")


def print_speed(speed: dict[str, Any], weight_bytes: int) -> None:
    """The tokens a second that reading the weights from memory allows, and why they may be more."""
    from sporelm.cli.gguf_text import bytes_text

    best, middle = speed["stream_bytes_s"], speed["stream_median_bytes_s"]
    print_labelled(
        "speed",
        f"about so many tokens/s, if every weight is read from memory at {best / 1e9:.1f} GB/s (the best of several "
        "reads now):",
    )
    disagree = f"half of the reads reach {middle / 1e9:.1f} GB/s or less" if middle < MIN_MEDIAN_SHARE * best else ""
    load, cores = speed["load_average"], speed["cores"]
    busy = f"the load average is {load:.1f} on {cores} core{'s' if cores > 1 else ''}" if load > cores else ""
    if signs := " and ".join(filter(None, (disagree, busy))):
        print_labelled(
            "",
            f"  (the figures are low, because other programs use the machine: {signs}. Measure again when it is idle)",
        )
    if (cache := speed["cache_bytes"]) and weight_bytes <= cache:
        print_labelled(
            "",
            f"  (it can be faster: the weights, {bytes_text(weight_bytes)}, fit into the processor's cache of "
            f"{bytes_text(cache)})",
        )
    if experts := speed["experts"]:
        read = bytes_text(experts["read_bytes"])
        print_labelled(
            "", f"  (a token reads {read} of the weights: {experts['used']} of a layer's {experts['count']} experts)"
        )
    for row in speed["decode"]:
        together = f"batch {row['batch']}, " if row["batch"] > 1 else ""
        note = " (multiplying takes longer than reading)" if row["limit"] == "compute" else ""
        print_figure(f"{together}after {row['depth']} tokens", f"{row['tok_s']:>10.1f}{note}")
