"""What the options of a chat with a server become: conversations with it."""

import argparse
import sys
from typing import Any

from sporelm.cli.plain_text import counted, plain
from sporelm.cli.remote.key import key_of
from sporelm.cli.remote.server import RemoteServer
from sporelm.cli.remote.values import RemoteParams
from sporelm.cli.sessions import Sessions, Wording

WORDING = Wording(
    saved="as JSON",
    loaded=", or with another list of messages in JSON",
    unset=";\n                     none leaves it to the server",
    nothing="(the server's)",
)


def open_sessions(args: argparse.Namespace) -> tuple[Sessions[Any], str]:
    """Conversations with the server of --url, and what they are with. Asks it for a model if none was named.

    Raises UsageError, RequestError, RemoteError.
    """
    params = RemoteParams.of(args)
    server = RemoteServer(args.url, key_of(args.api_key), args.model)
    about = ""
    if server.model is None:
        names = server.models()
        server.model = names[0]
        about = ", its only model" if len(names) == 1 else f", the first of its {counted(len(names), 'model')}"
        if not sys.stdin.isatty():  # there the chat says it
            print(f"spore: {server.address} answers with {plain(server.model)}{about}", file=sys.stderr, flush=True)
    return Sessions(server, params, args.system, WORDING), f"{server.model} at {server.address}{about}"
