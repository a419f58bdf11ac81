"""`spore replay`: repeat a recorded run, and compare the results."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import lora_options, options
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_text import pluralize
from sporelm.errors import RequestError, SporeError, UsageError

if TYPE_CHECKING:
    from sporelm.api.loaded_llm import LoadedLLM
    from sporelm.engine.recording_replay import Recording, ReplayResult


def make_parser() -> Parser:
    parser = Parser(
        "replay",
        "Repeat a run that --record wrote, step by step, on the same model. The same tokens must be sampled; with the "
        "same back-end and target every logit must be the same. Prints the first difference (exit code 1), and the "
        "time then and now.",
        "MODEL FILE [options]",
        ["spore replay model.gguf run.jsonl"],
    )
    # Both are optional for argparse: which one is missing can only be decided by the contents of the file.
    parser.add_argument("model", nargs="?", metavar="MODEL", help=options.MODEL_HELP.partition(";")[0])
    parser.add_argument("file", nargs="?", metavar="FILE", type=Path, help="the recording")
    options.add_json(parser)
    options.add_device(parser)
    options.add_eager(parser)
    lora_options.add_lora(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> None:
    from sporelm.engine.recording_replay import Recording, Replay

    check_both(args)
    recording = Recording(args.file)
    llm = open_recorded_model(recording, args)
    try:
        check_model(recording, llm)
        result = Replay(
            recording, llm.loaded_engine.decoder_worker, compare_logits=has_same_kernels(recording, llm)
        ).run()
    finally:
        llm.close()
    print(json.dumps(as_json(result)) if args.json else format_result(result))
    if result.difference is not None:
        raise SporeError(f"{args.file}: the results differ. {result.difference}")
    if result.stopped is not None:
        raise SporeError(f"{args.file}: the replay stopped early. {result.stopped}")


def check_both(args: argparse.Namespace) -> None:
    """Raise UsageError, which says what is missing, unless both a model and a recording are given."""
    from sporelm.engine.recording import BEGINNING

    if args.file is not None:
        return
    usage = "usage: spore replay MODEL FILE"
    if args.model is None:
        raise UsageError(f"MODEL and FILE, the recording, are missing; {usage}")
    try:
        with open(args.model, "rb") as file:
            is_recording = file.read(len(BEGINNING)) == BEGINNING.encode()
    except (OSError, ValueError):  # a folder, a stored name, or not a valid path
        is_recording = False
    if is_recording:
        raise UsageError(f"MODEL is missing: {args.model!r} is the recording and comes second; {usage}")
    raise UsageError(f"FILE, the recording, is missing: {args.model!r} is parsed as MODEL; {usage}")


def open_recorded_model(recording: "Recording", args: argparse.Namespace) -> "LoadedLLM":
    """Open the model with the recorded limits. Raises SporeError."""
    from sporelm.api.engine_loader import EngineOptions
    from sporelm.api.loaded_llm import LoadedLLM
    from sporelm.cli.progress_line import ProgressLine
    from sporelm.files import store

    options.check_threads(args.threads)
    limits = recording.limits
    adapters = lora_options.parse_lora(args)
    with ProgressLine() as progress:
        engine_options = EngineOptions(
            store.resolve(args.model, progress),
            **options.select(args, "backend", "device", "threads", "eager", "dtype", "strict"),
            max_context=limits.max_context,
            kv=recording.about.get("kv"),
            max_batch=limits.max_batch,
            dequantize=False,
            token_budget=limits.token_budget,
            num_pages=limits.num_pages,
            num_states=limits.num_states,
        )
        return LoadedLLM(engine_options, progress, None, None, adapters)


def check_model(recording: "Recording", llm: "LoadedLLM") -> None:
    """Raise RequestError unless the model is the one that was recorded."""
    if not llm.loaded_engine.model_identity.matches(recording.about.get("model")):
        name = recording.about.get("name")
        raise RequestError(f"{recording.path} is a recording of another model ({name!r:.60}): replay it with that one")


def has_same_kernels(recording: "Recording", llm: "LoadedLLM") -> bool:
    """Return whether the logits must be bitwise the same."""
    from sporelm.api.trace_and_record import describe_engine

    here = describe_engine(llm.loaded_engine)
    return all(recording.about.get(name) == here[name] for name in ("backend", "target", "sporelm"))


def as_json(result: "ReplayResult") -> dict[str, Any]:
    from dataclasses import asdict

    keys = {"num_sampled": "said", "is_truncated": "cut"}  # fields whose JSON keys are older
    values = {keys.get(name, name): value for name, value in asdict(result).items()}
    return {"same": result.difference is None and result.stopped is None, **values}


def format_result(result: "ReplayResult") -> str:
    """Return the result in a few lines."""
    then = result.recorded_seconds
    now = result.seconds
    speeds = f"{now:.3f} s ({result.tokens / now:.0f} tok/s), recorded {then:.3f} s" if now else "nothing to compute"
    counts = (
        f"{pluralize(result.steps, 'step')}, {pluralize(result.tokens, 'token')} computed, {result.num_sampled} sampled"
    )
    lines = [f"{counts}: {speeds}"]
    if not result.compared_logits:
        lines.append("recorded with other kernels or another version: tokens were compared, not logits bit by bit")
    if result.is_truncated:
        lines.append("the recording ends within a line: it was repeated up to there")
    if result.difference is None and result.stopped is None:
        lines.append("the results are the same")
    return "\n".join(lines)
