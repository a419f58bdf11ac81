"""`spore chat`: talk with a model, here or on a server, in a terminal or through a pipe."""

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sporelm.cli import interrupt, lora, options, sampling, standard_streams, watching
from sporelm.cli.chat_screen import Screen, dim
from sporelm.cli.parser import Parser
from sporelm.cli.plain_text import counted, plain
from sporelm.cli.sessions import Leave, Sessions, Thought
from sporelm.cli.terminal_layout import fold, terminal_width
from sporelm.errors import SporeError, UsageError

if TYPE_CHECKING:
    from sporelm.api import Completion

INTERRUPTED = 130  # exit code of a program that SIGINT ended; `main` makes another signal's of it


class ChatParser(Parser):
    """Notes as `given` which options were given: with --url the others are the server's to decide."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        found.given = self.given(self.words)
        return found, rest


def parser() -> Parser:
    made = ChatParser(
        "chat",
        "Talk with a model. What was said stays in the KV cache, so a turn costs only its own tokens. "
        "Slash commands: /list /create /fork /switch /drop /save /load /args /help /exit. "
        "Lines may also come through a pipe.",
        "[MODEL] [options]",
        [
            'spore chat --system "You answer in one sentence."',
            "echo What is a spore? | spore chat --temp 0",
            "spore chat --url http://127.0.0.1:8000",
        ],
    )
    options.add_model(made)
    made.add_argument("--system", metavar="TEXT", help="the system message")
    options.add_chat_template(made, options.TEMPLATE_HELP)
    made.add_argument(
        "--session-dir",
        metavar="DIR",
        help="where conversations sleep whose pages others need, instead of being computed anew",
    )
    remote = made.add_argument_group("with a server")
    remote.add_argument(
        "--url",
        metavar="URL",
        help="talk with this OpenAI-compatible server, such as http://127.0.0.1:8000 or https://host/v1; MODEL is then "
        "its name for a model (default: its first), and of the sampling only what is given is sent to it",
    )
    remote.add_argument("--api-key", metavar="KEY", help="the key that the server wants, sent as it is (SPORE_API_KEY)")
    sampling.add_sampling(made)
    options.add_engine(made)
    lora.add_lora(made)
    watching.add_watching(made)
    options.add_help(made)
    return made


def run(args: argparse.Namespace) -> int:
    standard_streams.check_input()
    if args.url is not None:
        from sporelm.cli.remote import opening
        from sporelm.cli.remote.answer import figures as remote_figures

        sessions, about = opening.open_sessions(args)
        return talk(sessions, about, remote_figures)
    if args.api_key is not None:
        raise UsageError("--api-key is for a server: name one with --url, or leave it out")
    adapters = lora.adapters(args)
    params = lora.chosen(sampling.sampling_params(args), adapters)
    llm = watching.open_model(args, session_dir=args.session_dir, adapters=adapters)
    try:
        about = f"{llm.config.name}, a context of {llm.max_context} tokens"
        code = talk(Sessions(llm, params, args.system), about, figures)
    finally:
        llm.close()
        failed = watching.tell(llm)
    return code or failed


def talk(sessions: Sessions, about: str, figures: Callable[[Any], str]) -> int:
    """Answer lines until they end; the exit code. `figures` puts an answer's, or None's, into words."""
    from sporelm.cli.chat_input import messages

    failures = 0
    if sys.stdin.isatty():
        banner = f"{plain(about)}: /help lists the commands, Ctrl-D leaves"
        print("\n".join(fold(banner, terminal_width(sys.stderr), 0)), file=sys.stderr)
    for text in messages(lambda: f"{sessions.current_id}> "):
        try:
            if text.startswith("/"):
                lines = sessions.command(text).split("\n")
                width = terminal_width()
                print("\n".join(each for line in lines for each in fold(line, width)), flush=True)
            else:
                answer(sessions, text, figures)
        except Leave:
            break
        except KeyboardInterrupt:  # a second Ctrl-C, while the first was not heard yet
            print(f"\n{dim('stopped')}", file=sys.stderr, flush=True)
        except SporeError as error:
            failures += 1
            print(f"spore: {plain(' '.join(str(error).split()))}", file=sys.stderr, flush=True)
        if interrupt.is_ending():
            return INTERRUPTED
    return 1 if failures and not sys.stdin.isatty() else 0


def answer(sessions: Sessions, text: str, figures: Callable[[Any], str]) -> None:
    """Print the answer as it comes, then the figures. Ctrl-C ends the answer; what was said so far stays.

    Raises SporeError for a turn that is refused, and for an answer that fails on its way.
    """
    completion: Any = None
    screen = Screen()
    with interrupt.interrupt_flag() as interrupted:
        try:
            with contextlib.closing(sessions.current.ask(text, sessions.params)) as stream:
                for piece in stream:
                    if isinstance(piece, Thought):
                        screen.think(piece.text)
                    else:
                        screen.say(piece.text)
                        completion = piece.completion or completion
                    if interrupted:
                        break
        except SporeError:
            if not screen.is_empty:
                screen.end()
            raise
        screen.end()
        if completion is not None and completion.finish_reason == "error":
            raise SporeError(completion.error or "the answer failed without a reason")
        print(dim(plain(figures(completion))), file=sys.stderr, flush=True)


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
