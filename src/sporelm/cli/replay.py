"""`spore replay`: repeat a recorded run, and say whether the same comes out."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sporelm.cli import lora, options
from sporelm.cli.parser import Parser
from sporelm.cli.plain_text import counted
from sporelm.errors import RequestError, SporeError, UsageError

if TYPE_CHECKING:
    from sporelm.api.open_model import OpenModel
    from sporelm.engine.replay import Recording, Replayed


def parser() -> Parser:
    made = Parser(
        "replay",
        "Repeat a run that --record wrote, step by step, on the same model: the same tokens must be chosen, and where "
        "back-end and target are the same, every logit must be the same. Tells the first difference (exit code 1), and "
        "how long it took then and now.",
        "MODEL FILE [options]",
        ["spore replay model.gguf run.jsonl"],
    )
    # Either may be missing for argparse: which of the two it is can only be told by looking at the file.
    made.add_argument("model", nargs="?", metavar="MODEL", help=options.MODEL_HELP.partition(";")[0])
    made.add_argument("file", nargs="?", metavar="FILE", type=Path, help="the recording")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--backend", metavar="NAME", help="cpu, torch or reference; default: cpu (SPORE_BACKEND)")
    made.add_argument("--device", metavar="D", default="cpu", help="device of the back-end; default: cpu")
    made.add_argument("--threads", type=int, metavar="N", help="default: the cores that affinity and cgroup leave")
    made.add_argument("--eager", action="store_true", help="run op by op, without a plan")
    lora.add_lora(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> None:
    from sporelm.engine.replay import Recording, Replay

    check_both(args)
    recording = Recording(args.file)
    llm = open_for(recording, args)
    try:
        check_model(recording, llm)
        result = Replay(recording, llm.opened.worker, compare_logits=same_kernels(recording, llm)).run()
    finally:
        llm.close()
    print(json.dumps(as_json(result)) if args.json else told(result))
    if result.difference is not None:
        raise SporeError(f"{args.file} does not come out the same: {result.difference}")
    if result.stopped is not None:
        raise SporeError(f"{args.file} was not repeated to its end: {result.stopped}")


def check_both(args: argparse.Namespace) -> None:
    """Raise UsageError, which says what is missing, unless a model and a recording are named."""
    from sporelm.engine.recording import BEGINNING

    if args.file is not None:
        return
    usage = "usage: spore replay MODEL FILE"
    if args.model is None:
        raise UsageError(f"MODEL and FILE, the recording, are missing; {usage}")
    try:
        with open(args.model, "rb") as file:
            is_recording = file.read(len(BEGINNING)) == BEGINNING.encode()
    except (OSError, ValueError):  # a folder, a name, or nothing that could be a file
        is_recording = False
    if is_recording:
        raise UsageError(f"MODEL is missing: {args.model!r} is the recording, and comes after it; {usage}")
    raise UsageError(f"FILE, the recording, is missing: {args.model!r} is taken for MODEL; {usage}")


def open_for(recording: "Recording", args: argparse.Namespace) -> "OpenModel":
    """The model with the recorded limits. Raises SporeError."""
    from sporelm.api.loading import Options
    from sporelm.api.open_model import OpenModel
    from sporelm.cli.progress import ProgressLine
    from sporelm.weights import store

    options.check_threads(args.threads)
    limits, adapters = recording.limits, lora.adapters(args)
    with ProgressLine() as progress:
        wanted = Options(
            store.resolve(args.model, progress),
            **options.given(args, "backend", "device", "threads", "eager"),
            max_context=limits.max_context,
            kv=recording.about.get("kv"),
            max_batch=limits.max_batch,
            dequantize=False,
            token_budget=limits.token_budget,
            num_pages=limits.num_pages,
            num_states=limits.num_states,
        )
        return OpenModel(wanted, progress, None, None, adapters)


def check_model(recording: "Recording", llm: "OpenModel") -> None:
    """Raise RequestError unless the model is the one that was recorded."""
    if recording.about.get("model") != llm.opened.identity:
        name = recording.about.get("name")
        raise RequestError(f"{recording.path} is a recording of another model ({name!r:.60}): replay it with that one")


def same_kernels(recording: "Recording", llm: "OpenModel") -> bool:
    """Whether the logits must be the same to the last bit."""
    from sporelm.api.watching import about

    here = about(llm.opened)
    return all(recording.about.get(name) == here[name] for name in ("backend", "target", "sporelm"))


def as_json(result: "Replayed") -> dict[str, Any]:
    from dataclasses import asdict

    return {"same": result.difference is None and result.stopped is None, **asdict(result)}


def told(result: "Replayed") -> str:
    """The result in a line or two."""
    then, now = result.recorded_seconds, result.seconds
    speeds = f"{now:.3f} s ({result.tokens / now:.0f} tok/s), recorded {then:.3f} s" if now else "nothing to compute"
    lines = [
        f"{counted(result.steps, 'step')}, {counted(result.tokens, 'token')} computed, {result.said} chosen: {speeds}"
    ]
    if not result.compared_logits:
        lines.append("recorded with other kernels or another version: choices were compared, not logits bit by bit")
    if result.cut:
        lines.append("the recording ends within a line: it was repeated up to there")
    if result.difference is None and result.stopped is None:
        lines.append("the same came out")
    return "\n".join(lines)
