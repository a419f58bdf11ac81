"""`spore worker`: be one rank of a model that another host runs."""

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sporelm.cli import options
from sporelm.cli.parser import Parser
from sporelm.errors import SporeError, UsageError

if TYPE_CHECKING:
    from sporelm.engine.ranks.rank_address import RankAddress

RETRY_SECONDS = 2.0  # between two attempts to connect


def make_parser() -> Parser:
    parser = Parser(
        "worker",
        "Be one rank of a model that runs on several hosts. The first host runs a command such as 'spore serve' "
        "with --remote-ranks, --rank-listen and --rank-token-file. It tells this worker its part of the model; the "
        "file must be the same, which is checked by its hash. After a failure, or a restart of the first host, the "
        "worker joins again.",
        "--join HOST:PORT --token-file FILE [MODEL] [options]",
        [
            "spore worker --join 10.0.0.1:7000 --token-file token",
            "spore worker --join 10.0.0.1:7000 --token-file token /data/model.gguf --wait-seconds 3600",
        ],
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="the model's file or folder here; default: the first host's path"
    )
    parser.add_argument("--join", required=True, metavar="HOST:PORT", help="address of the first host's --rank-listen")
    parser.add_argument(
        "--token-file", required=True, metavar="FILE", help="file with the first host's secret, mode 0600"
    )
    parser.add_argument(
        "--rank-tls-ca",
        metavar="FILE",
        help="certificates in PEM format that sign the first host's certificate",
    )
    parser.add_argument(
        "--allow-public-address", action="store_true", help="connect to a public address, such as a gateway's"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of this worker; default: the performance cores of this host"
    )
    parser.add_argument("--backend", metavar="NAME", help="back-end here; default: that of the first host")
    parser.add_argument("--device", metavar="DEVICE", help="device of --backend, such as cuda:1; default: cpu")
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="how long to wait for the first host, at the start and after it has ended; default: 60",
    )
    options.add_help(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.wait_seconds <= 1e9:
        raise UsageError(f"--wait-seconds: out of range (got {args.wait_seconds:g}; allowed 0 to 1e9).")
    options.check_threads(args.threads)
    if args.device is not None and args.backend is None:
        raise UsageError("--device: needs --backend. Give both, or leave it out.")
    from sporelm.api.host_choices import HostChoices
    from sporelm.api.rank_process import serve_connection
    from sporelm.engine.ranks.rank_address import RankAddress
    from sporelm.engine.ranks.transport import ConnectionLost, TokenRefused, client_tls, read_token
    from sporelm.files import store

    address, token = RankAddress.parse(args.join), read_token(Path(args.token_file).expanduser())
    path = store.resolve(args.model) if args.model is not None else None
    tls = client_tls(Path(args.rank_tls_ca).expanduser()) if args.rank_tls_ca is not None else None
    choices = HostChoices(path, args.threads, args.backend, args.device)
    choices.check()
    was_served, deadline, shown = False, time.monotonic() + args.wait_seconds, ""
    while True:
        try:
            is_over = serve_connection(
                address,
                token,
                choices=choices,
                tls=tls,
                allow_public=args.allow_public_address,
                on_join=report_join,
                on_spare=partial(report_spare, address),
            )
        except TokenRefused as reason:
            raise SporeError(f"{reason}. Copy the token file of the first host.") from None
        except ConnectionLost as reason:
            if time.monotonic() >= deadline:
                if was_served:
                    return 0
                raise SporeError(f"{reason}. Start the first host, or check the address.") from None
            if str(reason) != shown and not was_served:
                shown = str(reason)
                sys.stderr.write(f"spore: {shown}; trying for {args.wait_seconds:g} seconds\n")
        else:
            was_served, deadline = True, time.monotonic() + args.wait_seconds
            sys.stderr.write(f"spore: {address} has {'ended' if is_over else 'lost'} this rank\n")
        time.sleep(RETRY_SECONDS)


def report_join(name: str) -> None:
    sys.stderr.write(f"spore: joined {name}\n")


def report_spare(address: "RankAddress") -> None:
    sys.stderr.write(
        f"spore: {address} has all of its ranks; this worker waits, and takes the place of one that is lost\n"
    )
