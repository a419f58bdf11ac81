"""Options shared by several commands, and the functions that open a model according to them."""

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import rank_options
from sporelm.cli.parser import Parser
from sporelm.errors import RequestError, UsageError, safe_repr

if TYPE_CHECKING:
    from sporelm.api import LLM

MAX_PROMPT_BYTES = 64 << 20  # far beyond what a context holds
MAX_TEXT_BYTES = 1 << 30  # of a text to measure, whose tokens are all in memory
KV_CHOICES = ("f16", "bf16", "f32", "fp8", "q8_0")  # the keys of KV_TYPES, without importing numpy
DTYPE_CHOICES = ("auto", "f32", "f16", "bf16", "fp8")  # DTYPE_OPTIONS, without importing numpy
MODEL_HELP = "a .gguf file, a Hugging Face folder, hf:owner/name[:file] or a stored name; default: smollm2"


def add_help(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("-h", "--help", action="help", help="show this text and exit")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, which is optional."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)


def add_model_before(parser: Parser) -> None:
    """Add MODEL, which is optional, before other positional arguments."""
    add_model(parser)
    parser.takes_options_between = True


def read_text(name: str, what: str = "the text", max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Return the text of a file, or of stdin for '-'. Errors call it `what`. Raises RequestError."""
    from sporelm.files.text_file import read_text_or_stdin  # imports numpy

    return read_text_or_stdin(name, what, max_bytes)


def add_lines(parser: argparse.ArgumentParser, name: str) -> None:
    """Add -f FILE, with more texts."""
    parser.add_argument("-f", "--file", metavar="FILE", help=f"file with more {name}, one per line; - is stdin")


def read_lines(texts: list[str], file: str | None, name: str) -> list[str]:
    """Return the texts of the command line and of its file, without empty lines.

    Raises UsageError if there are none, RequestError for a file without any.
    """
    lines = [] if file is None else [line for line in read_text(file).splitlines() if line.strip()]
    if file is not None and not lines:
        raise RequestError(f"{file!r} is empty: give {name}, one per line")
    if not texts and not lines:
        raise UsageError(f"no {name} are given: give some, or a file of them with -f")
    return [*texts, *lines]


def check_not_model(word: str, name: str) -> None:
    """Raise UsageError if the only argument, parsed as `name`, is clearly a MODEL: a stored name or a model's path."""
    from sporelm.files import store

    path = Path(word)
    try:
        is_model = (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file()
    except (OSError, ValueError):  # not a valid path
        is_model = False
    if is_model or word in (*store.KNOWN, *(entry.name for entry in store.entries())):
        raise UsageError(f"{name} is missing: {safe_repr(word, 200)} is a model; give MODEL and {name}")


def add_json(parser: argparse.ArgumentParser, help_text: str = "print one JSON object") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help=help_text)


def add_device(parser: argparse.ArgumentParser, *, computes: bool = True) -> None:
    """Add --backend, --device, --dtype and --threads; for a command that runs a model also --strict."""
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="cpu, cuda, opencl, torch or reference, or auto: the fastest device that holds the model; default: cpu "
        "(SPORE_BACKEND)",
    )
    parser.add_argument("--device", metavar="D", default="cpu", help="device of the back-end; default: cpu")
    parser.add_argument(
        "--dtype",
        choices=DTYPE_CHOICES,
        default="auto",
        metavar="TYPE",
        help="data type of activations: auto, f32, f16, bf16, or fp8 (cuda only: W8A8 for FP8 weights, bf16 "
        "elsewhere); cpu and reference compute in f32; default: auto",
    )
    if computes:
        parser.add_argument(
            "--strict",
            action="store_true",
            help="refuse to run an op by the slow reference where the back-end has no kernel for it, and with "
            "--backend auto to pass over a device that was found but cannot be used",
        )
    parser.add_argument("--threads", type=int, metavar="N", help="default: the cores that affinity and cgroup allow")


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add --device-memory and --experts-on."""
    parser.add_argument(
        "--device-memory",
        metavar="SIZE",
        help="memory of the device for weights, KV cache and a step, such as 20G: layers that do not fit run on the "
        "CPU; default: its free memory",
    )
    parser.add_argument(
        "--experts-on",
        choices=("cpu",),
        metavar="cpu",
        help="put the matrices of experts on the CPU, and everything else on the device",
    )


def add_eager(parser: argparse.ArgumentParser) -> None:
    """Add --eager."""
    parser.add_argument("--eager", action="store_true", help="run op by op, without a plan")


def add_engine(parser: argparse.ArgumentParser, *, generates: bool = True) -> None:
    """Add the options of the engine; those of speculative decoding only for a command that generates text."""
    add_device(parser)
    add_eager(parser)
    add_split(parser)
    parser.add_argument(
        "--batch-invariant",
        action="store_true",
        help="make results independent of the batch: every product adds in a fixed order; slower on torch, always on "
        "for cpu",
    )
    parser.add_argument(
        "--max-context",
        type=int,
        metavar="N",
        help="maximum tokens of a sequence; default: the smallest of the model's context, 8192 and what memory allows",
    )
    parser.add_argument(
        "--kv",
        choices=KV_CHOICES,
        metavar="TYPE",
        help="data type of the KV cache: f16, bf16 or f32; q8_0 or fp8 in half the memory of f16, fp8 less precise; "
        "default: f32 for f32 weights, else f16",
    )
    parser.add_argument(
        "--kv-memory",
        metavar="SIZE",
        help="memory of the KV cache, such as 512M, 2G or 1.5GiB; default: what the contexts need, at most half of the "
        "free memory",
    )
    rank_options.add_ranks(parser)
    if generates:
        add_speculation(parser)
    else:
        parser.set_defaults(speculate=None, draft_model=None)


def add_chat_template(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add --chat-template."""
    parser.add_argument("--chat-template", metavar="NAME|FILE", help=help_text)


TEMPLATE_HELP = "replace the model's own chat template: chatml, llama3, mistral-v7, ... or a Jinja file"


def add_speculation(parser: argparse.ArgumentParser) -> None:
    """Add --speculate and --draft-model."""
    parser.add_argument(
        "--speculate",
        choices=("ngram", "draft"),
        metavar="HOW",
        help="speculative decoding, where it is faster; the output is the same. ngram: drafts from the text itself; "
        "draft: drafts from --draft-model",
    )
    parser.add_argument(
        "--draft-model", metavar="MODEL", help="a smaller model with the same vocabulary; implies --speculate draft"
    )


def select(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return some of the arguments by name, as keyword arguments."""
    return {name: getattr(args, name) for name in names}


def open_model(args: argparse.Namespace, *, max_batch: int = 1, **options: Any) -> "LLM":
    """Find the model, download it if needed, and load it, with a progress bar on stderr. Raises SporeError."""
    if args.max_context is not None and args.max_context < 1:
        raise UsageError(f"--max-context is {args.max_context}: it must be at least 1")
    check_threads(args.threads)
    check_size("--kv-memory", args.kv_memory)
    check_size("--device-memory", args.device_memory)
    if (args.speculate == "draft") > (args.draft_model is not None):
        raise UsageError("--speculate draft needs a draft model: name one with --draft-model")
    if args.speculate == "ngram" and args.draft_model is not None:
        raise UsageError("--speculate ngram takes no --draft-model: leave one of them out")
    ranks = rank_options.select_ranks(args)
    from sporelm.api import LLM
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store

    announced: list[str] = []

    def announce(line: str) -> None:
        progress.clear()
        announced.append(line)
        sys.stderr.write(f"spore: {line}\n")
        sys.stderr.flush()

    with ProgressLine() as progress:
        llm = LLM(
            store.resolve(args.model, progress),
            **select(args, "backend", "device", "threads", "eager", "max_context", "kv", "kv_memory"),
            **select(args, "dtype", "strict", "batch_invariant", "device_memory", "experts_on"),
            **select(args, "speculate", "draft_model"),
            **ranks,
            chat_template=getattr(args, "chat_template", None),
            mmproj=getattr(args, "mmproj", None),
            progress=progress,
            announce=announce,
            max_batch=max_batch,
            **options,
        )
    if not ranks:  # about ranks there is a note
        warn_about_threads(args.threads)
    for note in llm.notes:
        if note not in announced:
            sys.stderr.write(f"spore: {note}\n")
    return llm


def check_size(flag: str, size: str | None) -> None:
    """Raise UsageError if the value of a flag is given and is not a size of memory."""
    if size is None:
        return
    from sporelm.units import size_in_bytes

    try:
        size_in_bytes(flag, size)
    except RequestError as reason:
        raise UsageError(str(reason)) from None


def check_threads(threads: int | None) -> None:
    """Raise UsageError if --threads is out of range, before a model is loaded or downloaded."""
    from sporelm.api.cpu_count import choose_threads

    if threads is not None:
        try:
            choose_threads(threads, name="--threads")
        except RequestError as reason:
            raise UsageError(str(reason)) from None


@cache
def warn_about_threads(threads: int | None) -> None:
    """Warn once if there are more threads than usable cores, since they would wait for each other."""
    from sporelm.backends.host_cores import usable_cores

    if threads is not None and threads > (cores := usable_cores()):
        sys.stderr.write(
            f"spore: --threads {threads}: only {cores} cores are usable, so more threads are slower, not faster\n"
        )
