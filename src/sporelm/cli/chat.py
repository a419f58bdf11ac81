"""`spore chat`: chat with a local model or a server, in a terminal or through a pipe."""

import argparse
import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from sporelm.cli import (
    image_options,
    interrupt,
    lora_options,
    options,
    sampling_options,
    standard_streams,
    trace_options,
)
from sporelm.cli.chat_screen import ChatScreen, dim
from sporelm.cli.chat_sessions import ChatExit, ReasoningPiece, Sessions
from sporelm.cli.parser import Parser
from sporelm.cli.terminal_layout import fold, terminal_width
from sporelm.cli.terminal_text import escape_line, format_error, pluralize
from sporelm.errors import SporeError, UsageError

if TYPE_CHECKING:
    from sporelm.api import Completion

INTERRUPTED = 130  # exit code after SIGINT; `main` replaces it by that of another signal


class ChatParser(Parser):
    """Sets `given`, the names of the options that were given: with --url only these are sent."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = super().parse_known_args(args, namespace)
        parsed.given_names = self.find_given(self.words)
        return parsed, rest


def make_parser() -> Parser:
    parser = ChatParser(
        "chat",
        "Chat with a model. The history stays in the KV cache, so a turn computes only its own tokens. "
        "Slash commands: /image /list /create /fork /switch /drop /save /load /args /help /exit. "
        "Input may also come from a pipe.",
        "[MODEL] [options]",
        [
            'spore chat --system "You answer in one sentence."',
            "echo What is a spore? | spore chat --temp 0",
            "spore chat --url http://127.0.0.1:8000",
            "spore chat model.gguf --mmproj mmproj.gguf --image cat.png",
        ],
    )
    options.add_model(parser)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    options.add_chat_template(parser, options.TEMPLATE_HELP)
    image_options.add_mmproj(parser)
    image_options.add_images(parser, "a picture that goes with the first message; may be repeated")
    parser.add_argument(
        "--session-dir",
        metavar="DIR",
        help="folder to which the KV cache of idle conversations is offloaded when others need its pages",
    )
    remote = parser.add_argument_group("chat with a server")
    remote.add_argument(
        "--url",
        metavar="URL",
        help="chat with this OpenAI-compatible server, such as http://127.0.0.1:8000 or https://host/v1; MODEL is then "
        "one of its models (default: the first), and only sampling options that are given are sent",
    )
    remote.add_argument("--api-key", metavar="KEY", help="API key of the server, sent unchanged (SPORE_API_KEY)")
    sampling_options.add_sampling(parser)
    options.add_engine(parser)
    lora_options.add_lora(parser)
    trace_options.add_trace_and_record(parser)
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    standard_streams.check_input()
    if args.url is not None:
        from sporelm.cli.remote import remote_sessions
        from sporelm.cli.remote.remote_completion import format_stats as format_remote_stats

        pictures = image_options.read_pictures(args.images)
        sessions, description = remote_sessions.open_sessions(args)
        sessions.add_pictures(pictures)
        return chat(sessions, description, format_remote_stats)
    if args.api_key is not None:
        raise UsageError("--api-key is for a server: name one with --url, or leave it out")
    adapters = lora_options.parse_lora(args)
    params = lora_options.with_first_adapter(sampling_options.parse_sampling(args), adapters)
    pictures = image_options.read_pictures(args.images)
    llm = trace_options.open_traced_model(args, session_dir=args.session_dir, adapters=adapters)
    try:
        description = f"{llm.config.name}, a context of {llm.max_context} tokens"
        sessions = Sessions(llm, params, args.system, check_picture=partial(image_options.check_picture, llm))
        sessions.add_pictures(pictures)
        code = chat(sessions, description, format_stats)
    finally:
        llm.close()
        failed = trace_options.report(llm)
    return code or failed


def chat(sessions: Sessions, description: str, format_stats: Callable[[Any], str]) -> int:
    """Answer messages until the input ends, and return the exit code.

    format_stats   formats the line below an answer from its completion; None if the answer was stopped
    """
    from sporelm.cli.chat_input import read_messages

    failures = 0
    if sys.stdin.isatty():
        banner = f"{escape_line(description)}: /help lists the commands, Ctrl-D exits"
        print("\n".join(fold(banner, terminal_width(sys.stderr), 0)), file=sys.stderr)
    if sessions.pictures:
        print(sessions.list_pictures(), file=sys.stderr)
    for text in read_messages(sessions.prompt):
        try:
            if text.startswith("/"):
                lines = sessions.run_command(text).split("\n")
                width = terminal_width()
                print("\n".join(each for line in lines for each in fold(line, width)), flush=True)
            else:
                print_answer(sessions, text, format_stats)
        except ChatExit:
            break
        except KeyboardInterrupt:  # a second Ctrl-C, before the first took effect
            print(f"\n{dim('stopped')}", file=sys.stderr, flush=True)
        except SporeError as error:
            failures += 1
            print(f"spore: {format_error(error)}", file=sys.stderr, flush=True)
        if interrupt.is_terminating():
            return INTERRUPTED
    return 1 if failures and not sys.stdin.isatty() else 0


def print_answer(sessions: Sessions, text: str, format_stats: Callable[[Any], str]) -> None:
    """Stream the answer to stdout, then print its statistics. Ctrl-C stops the answer; the text so far is kept.

    Raises SporeError if the turn is refused or the answer fails.
    """
    completion: Any = None
    screen = ChatScreen()
    with interrupt.interrupt_flag() as interrupted:
        try:
            with contextlib.closing(sessions.ask(text)) as stream:
                for piece in stream:
                    if isinstance(piece, ReasoningPiece):
                        screen.print_reasoning(piece.text)
                    else:
                        screen.print_text(piece.text)
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
        print(dim(escape_line(format_stats(completion))), file=sys.stderr, flush=True)


def format_stats(completion: "Completion | None") -> str:
    """Return the line below an answer: tokens, speed, computed prompt tokens, an unusual finish reason, the seed."""
    if completion is None:
        return "stopped"
    parts = [
        f"{pluralize(len(completion.token_ids), 'token')}, {completion.timings.decode_tok_s:.1f} tok/s",
        f"{completion.computed_tokens} new in the prompt{' (evicted)' if completion.cache_miss == 'evicted' else ''}",
    ]
    if completion.dropped_tokens:
        parts.append(f"{pluralize(completion.dropped_tokens, 'token')} dropped")
    if completion.finish_reason != "stop":
        parts.append(completion.finish_reason)
    return " | ".join([*parts, f"seed {completion.seed}"])
