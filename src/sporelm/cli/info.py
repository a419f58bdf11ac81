"""`spore info`: show what a model is, the memory it needs, and how fast it can be here."""

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

from sporelm.cli import image_options, options, rank_options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import label_text, terminal_width
from sporelm.cli.terminal_text import escape_line
from sporelm.errors import ModelError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from sporelm.api.engine_loader import EngineOptions
    from sporelm.backends.protocol import Backend
    from sporelm.bench.resource_estimate import ResourceEstimate
    from sporelm.checkpoints.loader import ModelSource

LABEL_WIDTH = 15  # columns before the text of a line
MAX_NAMES = 6  # of replicated weights
IMAGE_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)
MIN_MEDIAN_SHARE = 0.8  # of the best read; the median is above it on an idle machine


def make_parser() -> Parser:
    parser = Parser(
        "info",
        "Show what a model is (architecture, parameters, size, number format, context, vocabulary, chat template), "
        "what it sees and how many tokens pictures take, the memory it needs for a context and a batch, whether that "
        "fits this machine, and an estimate of its speed: the memory bandwidth, the best of several reads now, divided "
        "by the bytes read per token. With --tp or --pp also what each rank would hold, or why the model cannot be "
        "divided. The model is neither loaded nor downloaded.",
        "[MODEL] [options]",
        [
            "spore info",
            "spore info model.gguf --context 32768 --batch 4",
            "spore info hf:owner/name:Q4_K_M --kv f32 --no-speed --json",
            "spore info model.gguf --backend torch --device cuda --device-memory 20G",
            "spore info model.gguf --mmproj mmproj.gguf --image-size 1600x900",
            "spore info model.gguf --tp 4 --json",
        ],
    )
    options.add_model(parser)
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of each sequence; default: the model's context, 8192 at most"
    )
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="number of sequences in a batch; default: 1")
    parser.add_argument(
        "--kv",
        choices=options.KV_CHOICES,
        metavar="TYPE",
        help="data type of the KV cache; default: f32 for f32 weights, else f16",
    )
    options.add_device(parser, computes=False)
    options.add_split(parser)
    image_options.add_mmproj(parser)
    parser.add_argument(
        "--image-size", type=parse_size, metavar="WxH", help="say how many tokens a picture of this size takes, too"
    )
    parser.add_argument("--no-speed", action="store_true", help="do not measure the bandwidth (about a second)")
    rank_options.add_division(parser)
    options.add_json(parser)
    options.add_help(parser)
    return parser


def parse_size(text: str) -> tuple[int, int]:
    """Parse --image-size: width and height in pixels."""
    found = IMAGE_SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not WIDTHxHEIGHT in pixels, from 1 to 99999")
    return int(found[1]), int(found[2])


def run(args: argparse.Namespace) -> None:
    from sporelm.files import store
    from sporelm.tools.model_summary import summarize_model

    for name in ("context", "batch"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name} is {value}: it must be at least 1")
    options.check_threads(args.threads)
    options.check_size("--device-memory", args.device_memory)
    rank_options.select_ranks(args)
    path = store.resolve(args.model, fetch=False)
    if args.mmproj is not None:
        from sporelm.api.tower_loading import resolve_mmproj

        args.mmproj = resolve_mmproj(args.mmproj, fetch=False)
    report: dict[str, Any] = {"model": args.model or store.DEFAULT, "path": str(path)} | summarize_model(path).as_json()
    report |= estimate_memory_and_speed(path, args)
    if args.json:
        from sporelm.cli.gguf_inputs import print_json

        print_json(report)
    else:
        print_report(report)


def estimate_memory_and_speed(path: "Path", args: argparse.Namespace) -> dict[str, Any]:
    """Return the memory and the speed, or why the model cannot run here."""
    from sporelm import settings
    from sporelm.api.backend_choice import AUTO
    from sporelm.api.cpu_count import choose_threads
    from sporelm.api.engine_loader import choose_for_model
    from sporelm.api.image_text_encoder import is_image_encoder
    from sporelm.api.model_loader import ModelLoader
    from sporelm.api.open_device import open_device
    from sporelm.api.parallel_options import ParallelOptions
    from sporelm.api.rank_footprint import summarize_ranks
    from sporelm.api.split_loading import check_device_option, split_if_needed
    from sporelm.api.tower_loading import find_mmproj
    from sporelm.bench.resource_estimate import ResourceEstimate
    from sporelm.checkpoints import open_model
    from sporelm.engine.kv.page_allocator import count_pages
    from sporelm.models import Encoder

    failed = dict.fromkeys(
        ("device_memory", "memory", "split", "ranks", "speed", "vision", "mmproj_beside", "encoder")
    ) | {"runs": False}
    parallel = ParallelOptions(**rank_options.select_ranks(args))
    if is_image_encoder(path):
        try:
            return failed | summarize_encoder(path, args)
        except ModelError as error:
            return failed | {"reason": str(error)}
    try:
        source = open_model(path)
    except ModelError as error:
        return failed | {"reason": str(error)}
    name, threads = args.backend or settings.BACKEND.value, choose_threads(args.threads)
    try:
        device = args.device
        if name == AUTO:
            try:
                choice = choose_for_model(
                    [source],
                    device,
                    threads,
                    args.dtype,
                    kv=args.kv,
                    max_context=args.context,
                    splits=args.device_memory is not None or args.experts_on is not None,
                )
            except ModelError as error:
                return failed | {"reason": str(error)}
            name, device = choice.name, choice.device
            sys.stderr.write(f"spore: {choice}\n")
        engine_options = split_options(path, name, device, threads, args)
        check_device_option(engine_options, name)
        backend = open_device(name, device, threads, args.dtype)
        try:
            ResourceEstimate(source, backend, args.kv).memory(args.context, args.batch)  # checks both options
            loader = ModelLoader(source, backend, args.kv, dequantize=False)
            found = None
            if parallel.is_single:
                found = split_if_needed(engine_options, loader, None, threads, device=device, measure=False)
            if found is not None:
                backend = found.backend
            estimate = ResourceEstimate(source, backend, args.kv)
            memory = estimate.memory(args.context, args.batch)
            decodes = not issubclass(
                source.schema.architecture, Encoder
            )  # the speed of an encoder is limited by compute
            num_pages = count_pages(memory.context) * args.batch
            ranks = summarize_ranks(loader, parallel, num_pages, args.batch, is_split=engine_options.wants_split)
            vision = summarize_vision(source, backend, args)
            if vision is None and args.image_size is not None:
                sys.stderr.write("spore: --image-size is ignored: the model has no vision tower\n")
            beside = find_mmproj(path, source.config) if vision is None else None
            speed = None if args.no_speed or not decodes else estimate_speeds(estimate, memory.context, args.batch)
            return {
                "runs": True,
                "backend": name,
                "device_memory": read_memory(backend),
                "memory": memory.as_json(),
                "split": None if found is None else found.split.as_json() | {"text": str(found.split)},
                "ranks": ranks,
                "speed": speed,
                "vision": vision,
                "mmproj_beside": None if beside is None else str(beside),
                "encoder": None,
            }
        except ModelError as error:
            return failed | {"reason": str(error)}
        finally:
            backend.close()
    finally:
        source.close()


def summarize_encoder(path: "Path", args: argparse.Namespace) -> dict[str, Any]:
    """Return what a folder of CLIP or SigLIP embeds, and the back-end. Raises ModelError."""
    from contextlib import ExitStack, closing

    from sporelm import settings
    from sporelm.api.backend_choice import AUTO
    from sporelm.api.cpu_count import choose_threads
    from sporelm.api.image_text_encoder import choose_for_encoders
    from sporelm.api.open_device import open_device
    from sporelm.api.vision_summary import summarize_encoder
    from sporelm.checkpoints.towers.open_tower import open_paired_text, open_tower

    name, device, threads = args.backend or settings.BACKEND.value, args.device, choose_threads(args.threads)
    with ExitStack() as opened:
        sources = [opened.enter_context(closing(open_tower(path)))]
        if (text := open_paired_text(path)) is not None:
            sources.append(opened.enter_context(closing(text)))
        if name == AUTO:
            choice = choose_for_encoders(sources, device, threads, args.dtype)
            name, device = choice.name, choice.device
            sys.stderr.write(f"spore: {choice}\n")
        backend = open_device(name, device, threads, args.dtype)
        opened.callback(backend.close)
        found = summarize_encoder(sources, backend)
        return {
            "runs": True, "backend": name, "device_memory": read_memory(backend), "encoder": found.as_json()
        }  # fmt: skip


def summarize_vision(source: "ModelSource", backend: "Backend", args: argparse.Namespace) -> dict[str, Any] | None:
    """Return what the model can see; None if it cannot see."""
    from sporelm.api.vision_summary import USUAL_SIZES, summarize_vision

    more = [args.image_size] if args.image_size is not None and args.image_size not in USUAL_SIZES else []
    found = summarize_vision(source, args.mmproj, backend, [*USUAL_SIZES, *more])
    return None if found is None else found.as_json()


def split_options(path: "Path", backend: str, device: str, threads: int, args: argparse.Namespace) -> "EngineOptions":
    """Return the options with which a model would be opened, for its split between a device and the CPU."""
    from sporelm.api.engine_loader import EngineOptions

    return EngineOptions(
        path,
        backend,
        device,
        threads,
        max_context=args.context,
        kv=args.kv,
        eager=False,
        max_batch=args.batch,
        dequantize=False,
        token_budget=None,
        dtype=args.dtype,
        device_memory=args.device_memory,
        experts_on=args.experts_on,
    )


def read_memory(backend: "Backend") -> dict[str, Any]:
    """Return the free and all bytes of the memory in which a back-end keeps its tensors: a device's own, or the
    host's."""
    from sporelm.backends.memory_residency import available_bytes, physical_bytes

    free, total = backend.free_bytes(), backend.total_bytes()
    if free is None:
        return {"owner": "host", "free": available_bytes(), "total": physical_bytes()}
    return {"owner": "device", "free": free, "total": total}


def estimate_speeds(estimate: "ResourceEstimate", context: int, batch: int) -> dict[str, Any]:
    """Measure the bandwidth, and return the tokens per second it allows: for one sequence, at full context, batched."""
    from sporelm.api.cpu_count import last_level_cache_bytes, load_average
    from sporelm.backends.host_cores import usable_cores

    if sys.stderr.isatty():
        message = "spore: measuring the memory bandwidth"[: (terminal_width(sys.stderr) or 80) - 1]
        sys.stderr.write(f"{message}\r")
    load = load_average()  # before the reads, which add to it
    machine = estimate.backend.measure_limits()
    if sys.stderr.isatty():
        sys.stderr.write(" " * len(message) + "\r")
    cases = [(1, 0), (1, context - 1)] + ([(batch, 0), (batch, context - 1)] if batch > 1 else [])
    experts = estimate.config.experts
    expert_reads = experts and {
        "count": experts.count,
        "used": experts.used,
        "read_bytes": round(estimate.workload.read_bytes(1)),
    }
    return {
        "stream_bytes_s": machine["stream_bytes_s"],
        "stream_median_bytes_s": machine["stream_median_bytes_s"],
        "load_average": round(load, 2),
        "cores": usable_cores(),
        "cache_bytes": last_level_cache_bytes(),
        "experts": expert_reads,
        "decode": [estimate.decode(machine, *case).as_json() for case in cases],
    }


def print_report(report: dict[str, Any]) -> None:
    """Print the report as text."""
    from sporelm.cli.gguf_text import bytes_text, count_text

    def say(name: str, value: object) -> None:
        print_labelled(name, escape_line(str(value)))

    def format_known(value: object, unit: str) -> str:
        return f"{value} {unit}" if value is not None else "unknown"

    say("model", report["model"])
    say("path", report["path"])
    say("architecture", report["architecture"] or "unknown")
    say("parameters", count_text(report["parameters"]))
    say("size", f"{bytes_text(report['bytes'])}, {report['quantization']}, {report['bits_per_weight']} bits per weight")
    say("context", format_known(report["context_length"], "tokens"))
    say("vocabulary", format_known(report["vocabulary"], "tokens"))
    say("chat template", "yes" if report["chat_template"] else "no")
    if not report["runs"]:
        say("runs here", f"no: {report['reason']}")
        return
    if report["encoder"] is not None:
        print_encoder(report["encoder"], report["backend"])
        print_device_memory(report["device_memory"])
        return
    print_vision(report["vision"], report["mmproj_beside"])
    print_memory(report["memory"], report["backend"])
    print_device_memory(report["device_memory"])
    if report["split"] is not None:
        say("split", report["split"]["text"].partition(": ")[2])
    if report["ranks"] is not None:
        print_ranks(report["ranks"])
    if report["speed"] is not None:
        print_speed(report["speed"], report["memory"]["weights"])


def print_labelled(label: str, text: str) -> None:
    """Print text beside its label, or below it on a narrow terminal."""
    print("\n".join(label_text(label, text, LABEL_WIDTH, terminal_width())))


def print_figure(title: str, figure: str) -> None:
    """Print one of the figures below a labelled line."""
    line, width = f"{'':<{LABEL_WIDTH + 2}}{title:<24}{figure}", terminal_width()
    if width is None or len(line) <= width:
        print(line)
    else:
        print("\n".join(label_text(f"  {title}", figure.strip(), len(title) + 4, width)))


def print_vision(vision: dict[str, Any] | None, mmproj: str | None) -> None:
    """Print what the model can see, and the tokens that pictures take; or the mmproj file beside it."""
    from sporelm.cli.gguf_text import bytes_text, count_text

    if vision is None:
        if mmproj is not None:
            print_labelled("sees", f"no, without --mmproj {escape_line(mmproj)}, which lies beside it")
        return
    verified_against = " and ".join(vision["verified_against"])
    print_labelled("sees", f"{vision['models']} ({vision['family']}), compared with {verified_against}")
    size = "" if vision["image_size"] is None else f" of {vision['image_size']}x{vision['image_size']} pixels"
    print_labelled(
        "vision tower",
        f"{vision['layers']} layers, width {vision['width']}, patches of {vision['patch']}x{vision['patch']}{size}, "
        f"{count_text(vision['parameters'])} parameters, {bytes_text(vision['bytes'])} of memory",
    )
    if not vision["is_fitting"]:
        print_labelled("", "  (its rows are not as wide as this model: it belongs to another one)")
    print_labelled("pictures", "tokens in the prompt, one for each image row, by size in pixels:")
    for picture in vision["pictures"]:
        print_figure(f"{picture['width']}x{picture['height']}", f"{picture['tokens']:>10}")


def print_encoder(encoder: dict[str, Any], backend: str) -> None:
    """Print what an image encoder embeds, and the memory of its weights."""
    from sporelm.cli.gguf_text import bytes_text

    verified_against = " and ".join(encoder["verified_against"])
    kinds = "pictures and texts" if encoder["has_text"] else "pictures; it has no text encoder"
    print_labelled("family", f"{encoder['models']} ({encoder['family']}), compared with {verified_against}")
    print_labelled("embeds", f"{kinds}: vectors of {encoder['columns']} values ('spore embed'). It generates no text")
    size = f"{encoder['image_size']}x{encoder['image_size']}"
    print_labelled(
        "vision tower",
        f"{encoder['layers']} layers, width {encoder['width']}, patches of {encoder['patch']}x{encoder['patch']} of "
        f"{size} pixels",
    )
    print_labelled("memory", f"{bytes_text(encoder['bytes'])} of weights on {backend}")


def print_memory(memory: dict[str, Any], backend: str) -> None:
    """Print the memory that the model needs, part by part."""
    from sporelm.cli.gguf_text import bytes_text

    sequences = f"{memory['batch']} x " if memory["batch"] > 1 else ""
    tokens = f"{sequences}{memory['context']} tokens of context on {backend}"
    print_labelled("memory", f"{bytes_text(memory['total'])} for {tokens}")
    titles = {
        "weights": "weights",
        "kv": f"KV cache, {memory['kv_type']}",
        "states": "recurrent states",
        "step": "activations",
        "tables": "rotary table",
        "program": "program and tokenizer",
    }
    for key, title in titles.items():
        if memory[key] or key not in ("kv", "states", "tables"):
            print_figure(title, f"{bytes_text(memory[key]):>10}")
    if memory["fits"] is not None:
        answer = "yes" if memory["fits"] else "no: use a smaller --context, or a model with fewer bits per weight"
        print_labelled("fits", f"{answer} ({bytes_text(memory['available'])} are available)")


def print_device_memory(memory: dict[str, Any]) -> None:
    """Print the free and all bytes of the memory that the back-end uses."""
    from sporelm.cli.gguf_text import bytes_text

    if memory["free"] is None:
        return
    total = "" if memory["total"] is None else f" of {bytes_text(memory['total'])}"
    print_labelled(f"{memory['owner']} memory", f"{bytes_text(memory['free'])}{total} free")


def print_ranks(ranks: dict[str, Any]) -> None:
    """Print what each rank would hold, ranks that hold as much together; or why the model cannot be divided."""
    from sporelm.cli.gguf_text import bytes_text

    if not ranks["runs"]:
        print_labelled("ranks", f"no: {escape_line(rank_options.name_flags(ranks['reason']))}")
        return
    members, whole = ranks["members"], ranks["whole"]
    total = sum(member["weights"] for member in members)
    again = total - whole
    extra = f", {bytes_text(again)} of it more than once" if again else ""
    print_labelled("ranks", f"{len(members)} ranks with {bytes_text(total)} of weights in all{extra}:")
    texts: list[str] = []
    for member in members:
        first, end = member["layers"]
        layers = f"layers {first} to {end - 1}, " if ranks["pp"] > 1 else ""
        text = f"{layers}weights {bytes_text(member['weights'])} ({member['weights'] / whole:.1%})"
        heads = ", ".join(f"{pair['rank']} of {pair['model']}" for pair in member["kv_heads"])
        text += f", KV heads {heads}" if heads else ""
        text += f", KV cache {bytes_text(member['kv'])}" if member["kv"] else ""
        texts.append(text + (f", recurrent states {bytes_text(member['states'])}" if member["states"] else ""))
    begin = 0
    while begin < len(texts):
        last = begin
        while last + 1 < len(texts) and texts[last + 1] == texts[begin]:
            last += 1
        print_labelled(f"  rank {begin}" if begin == last else f"  ranks {begin}-{last}", texts[begin])
        begin = last + 1
    names = list(members[0]["replicated_weights"])
    if names:
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        nbytes = bytes_text(members[0]["replicated"])
        print_labelled("", f"  (replicated on each rank of a stage: {nbytes}, {', '.join(names[:MAX_NAMES])}{more})")


def print_speed(speed: dict[str, Any], weight_bytes: int) -> None:
    """Print the tokens per second that the memory bandwidth allows, and why the real speed may differ."""
    from sporelm.cli.gguf_text import bytes_text

    best = speed["stream_bytes_s"]
    median = speed["stream_median_bytes_s"]
    print_labelled(
        "speed",
        f"estimated tokens/s if all weights are read from memory at {best / 1e9:.1f} GB/s (the best of several reads "
        "now):",
    )
    spread = f"half of the reads reach {median / 1e9:.1f} GB/s or less" if median < MIN_MEDIAN_SHARE * best else ""
    load = speed["load_average"]
    cores = speed["cores"]
    busy = f"the load average is {load:.1f} on {cores} core{'s' if cores > 1 else ''}" if load > cores else ""
    if signs := " and ".join(filter(None, (spread, busy))):
        print_labelled(
            "",
            f"  (the figures are low, because other programs use the machine: {signs}. Measure again when it is idle)",
        )
    if (cache := speed["cache_bytes"]) and weight_bytes <= cache:
        print_labelled(
            "",
            f"  (it can be faster: the weights, {bytes_text(weight_bytes)}, fit in the CPU's cache of "
            f"{bytes_text(cache)})",
        )
    if experts := speed["experts"]:
        read = bytes_text(experts["read_bytes"])
        print_labelled(
            "", f"  (a token reads {read} of the weights: {experts['used']} of a layer's {experts['count']} experts)"
        )
    for row in speed["decode"]:
        together = f"batch {row['batch']}, " if row["batch"] > 1 else ""
        note = " (limited by compute)" if row["limit"] == "compute" else ""
        print_figure(f"{together}after {row['depth']} tokens", f"{row['tok_s']:>10.1f}{note}")
