"""The options that several commands share, and what they become: a model that is open."""

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli.parser import Parser
from sporelm.errors import RequestError, UsageError, shown

if TYPE_CHECKING:
    from sporelm.api import LLM

MODEL_HELP = "a .gguf file, a Hugging Face folder, hf:owner/name[:file] or a stored name; default: smollm2"


def add_help(parser: argparse.ArgumentParser) -> None:
    """The options of every command."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("-h", "--help", action="help", help="show this text and exit")


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, which may be left out."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)


def add_model_before(parser: Parser) -> None:
    """Add MODEL, which may be left out, before other positional arguments."""
    add_model(parser)
    parser.takes_options_between = True


def check_not_model(word: str, what: str) -> None:
    """Raise UsageError if the only argument, parsed as `what`, is clearly a MODEL: a stored name or a model's path."""
    from sporelm.weights import store

    path = Path(word)
    try:
        is_model = (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file()
    except (OSError, ValueError):  # a text that cannot be a path
        is_model = False
    if is_model or word in (*store.KNOWN, *(entry.name for entry in store.entries())):
        raise UsageError(f"{what} is missing: {shown(word, 200)} is a model; give MODEL and {what}")


def add_engine(parser: argparse.ArgumentParser, *, guessing: bool = True) -> None:
    """Where and how the model runs; without `guessing` for a command that makes no answers."""
    parser.add_argument("--backend", metavar="NAME", help="cpu, torch or reference; default: cpu (SPORE_BACKEND)")
    parser.add_argument("--device", metavar="D", default="cpu", help="device of the back-end; default: cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the cores that affinity and cgroup leave")
    parser.add_argument("--eager", action="store_true", help="run op by op, without a plan")
    parser.add_argument(
        "--max-context",
        type=int,
        metavar="N",
        help="positions kept at most; default: the least of the model's own, 8192 and what the memory allows",
    )
    parser.add_argument(
        "--kv",
        choices=("f16", "f32", "q8_0"),
        metavar="TYPE",
        help="numbers of the KV cache: f16, f32, or q8_0 in half of f16's memory; default: f32 for f32 weights, "
        "else f16",
    )
    parser.add_argument(
        "--kv-memory",
        metavar="SIZE",
        help="memory for the KV cache, such as 512M, 2G or 1.5GiB; default: what contexts need, half of what is free "
        "at most",
    )
    if guessing:
        add_guessing(parser)
    else:
        parser.set_defaults(speculate=None, draft_model=None)


def add_chat_template(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --chat-template."""
    parser.add_argument("--chat-template", metavar="NAME|FILE", help=what)


TEMPLATE_HELP = "replace the model's own chat template: chatml, llama3, mistral-v7, ... or a Jinja file"


def add_guessing(parser: argparse.ArgumentParser) -> None:
    """--speculate and --draft-model."""
    parser.add_argument(
        "--speculate",
        choices=("ngram", "draft"),
        metavar="HOW",
        help="guess tokens and check several at once, where that pays; same answers. ngram: those that repeat the "
        "text; draft: those of --draft-model",
    )
    parser.add_argument(
        "--draft-model", metavar="MODEL", help="a smaller model with the same tokens; means --speculate draft"
    )


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """What was given for options, by their names, for what knows them by the same."""
    return {name: getattr(args, name) for name in names}


def open_model(args: argparse.Namespace, *, max_batch: int = 1, **options: Any) -> "LLM":
    """Find, fetch if needed, and load the model, with a progress bar on stderr. Raises SporeError."""
    if args.max_context is not None and args.max_context < 1:
        raise UsageError(f"--max-context is {args.max_context}: it must be at least 1")
    check_threads(args.threads)
    if args.kv_memory is not None:
        from sporelm.engine.sizes import size_in_bytes

        try:
            size_in_bytes("--kv-memory", args.kv_memory)
        except RequestError as reason:
            raise UsageError(str(reason)) from None
    if (args.speculate == "draft") > (args.draft_model is not None):
        raise UsageError("--speculate draft needs a draft model: name one with --draft-model")
    if args.speculate == "ngram" and args.draft_model is not None:
        raise UsageError("--speculate ngram takes no --draft-model: leave one of them out")
    from sporelm.api import LLM
    from sporelm.cli.progress import ProgressLine
    from sporelm.weights import store

    with ProgressLine() as progress:
        llm = LLM(
            store.resolve(args.model, progress),
            **given(args, "backend", "device", "threads", "eager", "max_context", "kv", "kv_memory"),
            **given(args, "speculate", "draft_model"),
            chat_template=getattr(args, "chat_template", None),
            progress=progress,
            max_batch=max_batch,
            **options,
        )
    warn_of_threads(args.threads)
    for note in llm.notes:
        sys.stderr.write(f"spore: {note}\n")
    return llm


def check_threads(threads: int | None) -> None:
    """Raise UsageError if --threads is out of range, before a model is read or downloaded."""
    from sporelm.api.machine import choose_threads

    if threads is not None:
        try:
            choose_threads(threads, name="--threads")
        except RequestError as reason:
            raise UsageError(str(reason)) from None


@cache
def warn_of_threads(threads: int | None) -> None:
    """Say, once, that more threads were asked for than can run at once: they would wait for each other."""
    from sporelm.api.machine import usable_cores

    if threads is not None and threads > (cores := usable_cores()):
        sys.stderr.write(
            f"spore: --threads {threads} are more than the {cores} cores that are there: slower, not faster\n"
        )
