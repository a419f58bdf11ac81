"""The options of a model on several ranks, for every command that runs one."""

import argparse
import re
from typing import Any

from sporelm.errors import UsageError, safe_repr

NAMES = (
    "tp", "pp", "ep", "tp_shares", "pp_layers", "rank_executor", "remote_ranks", "rank_listen", "rank_token_file",
    "rank_tls_cert", "rank_tls_key", "rank_devices", "micro_batches",
)  # fmt: skip


TITLE = "several ranks (docs/distributed.md)"


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the options of several ranks."""
    group = parser.add_argument_group(TITLE)
    _add_division(group)
    group.add_argument(
        "--micro-batches",
        type=int,
        metavar="N",
        help="parts into which a step is split so that stages work at the same time; default: one for each stage",
    )
    group.add_argument(
        "--rank-devices",
        type=parse_names,
        metavar="NAME,..",
        help="back-end of each stage, or of each rank, with its device: cuda@cuda:0,cpu; default: that of --backend",
    )
    group.add_argument(
        "--rank-executor",
        choices=("processes", "threads"),
        metavar="HOW",
        help="where this host's ranks run beside the first: processes, or threads for tests; default: processes",
    )
    group.add_argument(
        "--remote-ranks",
        type=int,
        metavar="N",
        help="how many of the last ranks are workers of other hosts, which join with 'spore worker'; default: 0",
    )
    group.add_argument("--rank-listen", metavar="HOST:PORT", help="private address at which they join")
    group.add_argument("--rank-token-file", metavar="FILE", help="file with their secret; created if it does not exist")
    group.add_argument(
        "--rank-tls-cert", metavar="FILE", help="certificate in PEM format: encrypt the messages between hosts"
    )
    group.add_argument("--rank-tls-key", metavar="FILE", help="private key of --rank-tls-cert")


def add_division(parser: argparse.ArgumentParser) -> None:
    """Add the options that tell how a model is divided, for a command that does not run it."""
    _add_division(parser.add_argument_group(TITLE))


def _add_division(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--tp", type=int, metavar="N", help="tensor-parallel ranks, which have a shard of each weight; default: 1"
    )
    group.add_argument("--pp", type=int, metavar="N", help="pipeline stages, which have some layers each; default: 1")
    group.add_argument(
        "--ep", action="store_true", help="divide experts as a whole over the ranks, not each expert's matrices"
    )
    group.add_argument(
        "--tp-shares",
        type=parse_list,
        metavar="N,..",
        help="relative sizes of the shards, such as 1,1,2; default: equal",
    )
    group.add_argument(
        "--pp-layers", type=parse_list, metavar="N,..", help="layers of each stage, such as 10,12; default: equal"
    )


def parse_list(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,1,2."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"not a list of whole numbers (got {safe_repr(text)}; allowed numbers such as 1,1,2)"
        ) from None


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a list such as cuda@cuda:0,cpu."""
    return tuple(part.strip() for part in text.split(","))


def select_ranks(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, as keyword arguments of `LLM`. Raises UsageError for impossible ones."""
    from sporelm.api.parallel_options import ParallelOptions
    from sporelm.errors import RequestError

    given = {name: value for name in NAMES if (value := getattr(args, name, None)) is not None and value is not False}
    try:
        ParallelOptions(**given).check()
    except RequestError as reason:
        raise UsageError(name_flags(str(reason))) from None
    return given


def name_flags(message: str) -> str:
    """Return the message of an error about options of `LLM` with their names on the command line."""
    return re.sub(r"\bthe options? ([a-z_]+)", lambda found: f"--{found[1].replace('_', '-')}", message)
