"""`spore chat`: talk with a model, in a terminal or through a pipe."""

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from sporelm.cli import interrupt, lora, options, sampling, watching
from sporelm.cli.parser import Parser
from sporelm.cli.plain_text import counted
from sporelm.errors import SporeError

if TYPE_CHECKING:
    from sporelm.api import Completion
    from sporelm.cli.sessions import Sessions

INTERRUPTED = 130  # exit code of a program that SIGINT ended; `main` makes another signal's of it


def parser() -> Parser:
    made = Parser(
        "chat",
        "Talk with a model. What was said stays in the KV cache, so a turn costs only its own tokens. "
        "Slash commands: /list /create /fork /switch /drop /save /load /args /help /exit. "
        "Lines may also come through a pipe.",
        "[MODEL] [options]",
        ['spore chat --system "You answer in one sentence."', "echo What is a spore? | spore chat --temp 0"],
    )
    options.add_model(made)
    made.add_argument("--system", metavar="TEXT", help="the system message")
    made.add_argument(
        "--session-dir",
        metavar="DIR",
        help="where conversations sleep whose pages others need, instead of being computed anew",
    )
    sampling.add_sampling(made)
    options.add_engine(made)
    lora.add_lora(made)
    watching.add_watching(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    from sporelm.cli.chat_input import messages
    from sporelm.cli.sessions import Leave, Sessions

    adapters = lora.adapters(args)
    params = lora.chosen(sampling.sampling_params(args), adapters)
    llm = watching.open_model(args, session_dir=args.session_dir, adapters=adapters)
    try:
        sessions = Sessions(llm, params, args.system)
        failures = 0
        if sys.stdin.isatty():
            about = f"{llm.config.name}, a context of {llm.max_context} tokens"
            print(f"{about}: /help lists the commands, Ctrl-D leaves", file=sys.stderr)
        for text in messages(lambda: f"{sessions.current_id}> "):
            try:
                if text.startswith("/"):
                    print(sessions.command(text), flush=True)
                else:
                    answer(sessions, text)
            except Leave:
                break
            except KeyboardInterrupt:  # a second Ctrl-C, while the first was not heard yet
                print(f"\n{dim('stopped')}", file=sys.stderr, flush=True)
            except SporeError as error:
                failures += 1
                print(f"spore: {error}", file=sys.stderr, flush=True)
            if interrupt.is_ending():
                return INTERRUPTED
    finally:
        llm.close()
        watching.tell(llm)
    return 1 if failures and not sys.stdin.isatty() else 0


def answer(sessions: "Sessions", text: str) -> None:
    """Print the answer as it comes, then the figures. Ctrl-C ends the answer; what was said so far stays.

    Raises SporeError for a turn that is refused, and for an answer that fails on its way.
    """
    completion: Completion | None = None
    with interrupt.interrupt_flag() as interrupted:
        with contextlib.closing(sessions.current.ask(text, sessions.params)) as stream:
            for piece in stream:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
                completion = piece.completion or completion
                if interrupted:
                    break
        print(flush=True)
        if completion is not None and completion.finish_reason == "error":
            raise SporeError(completion.error or "the answer failed without a reason")
        print(dim(figures(completion)), file=sys.stderr, flush=True)


def figures(completion: "Completion | None") -> str:
    """What stands under an answer: tokens, speed, new tokens of the prompt, an unusual end, the seed."""
    if completion is None:
        return "stopped"
    parts = [
        f"{counted(len(completion.token_ids), 'token')}, {completion.timings.decode_tok_s:.1f} tok/s",
        f"{completion.computed_tokens} new in the prompt{' (evicted)' if completion.cache_miss == 'evicted' else ''}",
    ]
    if completion.dropped_tokens:
        parts.append(f"{counted(completion.dropped_tokens, 'token')} left out")
    if completion.finish_reason != "stop":
        parts.append(completion.finish_reason)
    return " | ".join([*parts, f"seed {completion.seed}"])


def dim(text: str) -> str:
    """The text in a fainter colour, where stderr is a terminal that knows how."""
    if not sys.stderr.isatty() or sys.platform == "win32":
        return text
    return f"\x1b[2m{text}\x1b[0m"
