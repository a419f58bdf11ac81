"""Create the chat sessions of `spore chat --url`."""

import argparse
import sys
from typing import Any

from sporelm.cli.chat_sessions import HelpTexts, Sessions
from sporelm.cli.remote.api_key_option import resolve_key
from sporelm.cli.remote.remote_params import RemoteParams
from sporelm.cli.remote.remote_server import RemoteServer
from sporelm.cli.terminal_text import escape_line, pluralize

HELP_TEXTS = HelpTexts(
    saved="as JSON",
    loaded=", or with another list of messages in JSON",
    unset=";\n                     none leaves it to the server",
    unset_value="(the server's)",
)


def open_sessions(args: argparse.Namespace) -> tuple[Sessions[Any], str]:
    """Return sessions with the server of --url, and a description of it. Asks it for a model if none was named.

    Raises UsageError, RequestError, RemoteError.
    """
    params = RemoteParams.from_args(args)
    server = RemoteServer(args.url, resolve_key(args.api_key), args.model)
    note = ""
    if server.model is None:
        names = server.list_models()
        server.model = names[0]
        note = ", its only model" if len(names) == 1 else f", the first of its {pluralize(len(names), 'model')}"
        if not sys.stdin.isatty():  # on a terminal the banner says it
            line = f"spore: {server.address} answers with {escape_line(server.model)}{note}"
            print(line, file=sys.stderr, flush=True)
    return Sessions(server, params, args.system, HELP_TEXTS), f"{server.model} at {server.address}{note}"
