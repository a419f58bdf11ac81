"""The options of a model on several ranks: how it is divided, and where its workers run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sporelm import settings
from sporelm.api.user_paths import parse_path
from sporelm.backends.backend_registry import backend_names
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.ranks.rank_address import RankAddress
from sporelm.engine.request import parse_int
from sporelm.errors import RequestError, safe_repr

RANK_EXECUTORS = ("processes", "threads")
DEFAULT_DEVICE = "cpu"  # of the option device


@dataclass(frozen=True)
class ParallelOptions:
    """See `LLM`, which has each of these."""

    tp: int = 1
    pp: int = 1
    ep: bool = False
    tp_shares: Sequence[int] | None = None
    pp_layers: Sequence[int] | None = None
    rank_executor: str = "processes"
    remote_ranks: int = 0
    rank_listen: str | None = None
    rank_token_file: str | Path | None = None
    rank_tls_cert: str | Path | None = None
    rank_tls_key: str | Path | None = None
    rank_devices: Sequence[str] | None = None
    micro_batches: int = 0

    def check(self) -> None:
        """Raise RequestError for an invalid value, or for options that do not fit together."""
        config = self.config
        if not isinstance(self.ep, bool):
            raise RequestError(f"the option ep: wrong type (got {safe_repr(self.ep)}; allowed True, False).")
        if self.rank_executor not in RANK_EXECUTORS:
            raise RequestError(
                f"the option rank_executor: unknown (got {safe_repr(self.rank_executor)}; allowed "
                f"{', '.join(RANK_EXECUTORS)})."
            )
        remote = parse_int("remote_ranks", self.remote_ranks)
        if not 0 <= remote < config.size:
            raise RequestError(
                f"the option remote_ranks: out of range (got {remote}; allowed 0 to {config.size - 1}, since the first "
                "rank is in this process). Give less, or raise the option tp or the option pp."
            )
        network = [name for name in ("rank_listen", "rank_token_file") if getattr(self, name) is None]
        if remote and network:
            raise RequestError(f"the option remote_ranks: needs the option {network[0]}. Give both, or leave it out.")
        if remote and self.rank_executor == "threads":
            raise RequestError(
                "the option rank_executor: threads are in this process, and those of the option remote_ranks are not. "
                "Leave one out."
            )
        if (self.rank_tls_cert is None) != (self.rank_tls_key is None):
            raise RequestError("the option rank_tls_cert: needs the option rank_tls_key, and the other way round.")
        if not remote:
            given = [
                name for name in ("rank_listen", "rank_token_file", "rank_tls_cert") if getattr(self, name) is not None
            ]
            if given:
                raise RequestError(
                    f"the option {given[0]}: is for workers on other hosts. Give the option remote_ranks."
                )
        _ = self.token_path, self.tls_paths, self.devices
        if self.address is not None:
            self.address.resolve()

    @cached_property
    def config(self) -> ParallelConfig:
        """The ranks. Raises RequestError for numbers that do not fit together."""
        numbers = {name: parse_int(name, getattr(self, name)) for name in ("tp", "pp", "micro_batches")}
        lists = {name: _parse_list(name, getattr(self, name)) for name in ("tp_shares", "pp_layers")}
        return ParallelConfig(
            numbers["tp"],
            numbers["pp"],
            expert_parallel=self.ep,
            shares=lists["tp_shares"],
            stage_layers=lists["pp_layers"],
            micro_batches=numbers["micro_batches"],
        )

    @cached_property
    def devices(self) -> tuple[tuple[str, str], ...]:
        """The back-end and the device of each rank; (): all have those of the first. Raises RequestError."""
        given = self.rank_devices
        if given is None:
            return ()
        is_list = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
        if not is_list or len(given) not in (self.config.pp, self.config.size):
            counts = " or ".join(map(str, sorted({self.config.pp, self.config.size})))
            raise RequestError(
                f"the option rank_devices: must be one for each stage or for each rank (got {safe_repr(given)}; "
                f"allowed {counts} of them). Give names such as cuda@cuda:0,cpu."
            )
        devices = tuple(_parse_device(each) for each in given)
        if len(devices) == self.config.size:
            return devices
        return tuple(each for each in devices for _ in range(self.config.tp))

    @property
    def is_single(self) -> bool:
        """Whether there is one rank."""
        return self.config.size == 1

    @property
    def uses_nccl(self) -> bool:
        """Whether the ranks of each stage add values with NCCL: where that is set, and each has a GPU of this host."""
        is_local = not self.remote_ranks and self.rank_executor == "processes"
        if settings.NCCL.value != "yes" or self.config.tp == 1 or not is_local or not self.devices:
            return False
        has_gpus = all(name in ("cuda", "torch") and device.startswith("cuda") for name, device in self.devices)
        return has_gpus and len({device for _, device in self.devices}) == len(self.devices)

    @property
    def num_local(self) -> int:
        """The ranks of this host, which are the first ones."""
        return self.config.size - self.remote_ranks

    @cached_property
    def address(self) -> RankAddress | None:
        """The address at which workers of other hosts join."""
        return RankAddress.parse(self.rank_listen) if self.rank_listen is not None else None

    @cached_property
    def token_path(self) -> Path | None:
        return (
            parse_path("the option rank_token_file", self.rank_token_file) if self.rank_token_file is not None else None
        )

    @cached_property
    def tls_paths(self) -> tuple[Path, Path] | None:
        """The certificate and its key."""
        if self.rank_tls_cert is None or self.rank_tls_key is None:
            return None
        return (
            parse_path("the option rank_tls_cert", self.rank_tls_cert),
            parse_path("the option rank_tls_key", self.rank_tls_key),
        )


def _parse_device(text: str) -> tuple[str, str]:
    """Return the back-end and the device of NAME or NAME@DEVICE."""
    name, at, device = text.partition("@")
    check_backend_name("the option rank_devices", name)
    if at and not device:
        raise RequestError(
            f"the option rank_devices: no device behind @ (got {safe_repr(text)}). Give NAME or NAME@DEVICE."
        )
    return name, device or DEFAULT_DEVICE


def check_backend_name(option: str, name: str) -> None:
    """Raise RequestError for the name of no back-end; "auto" is none, since each rank has one of its own."""
    names = backend_names()
    if name not in names:
        raise RequestError(f"{option}: unknown back-end (got {safe_repr(name)}; allowed {', '.join(names)}).")


def _parse_list(name: str, values: Sequence[int] | None) -> tuple[int, ...]:
    if values is None:
        return ()
    if not isinstance(values, list | tuple) or not values:
        raise RequestError(f"the option {name}: not a list (got {safe_repr(values)}; allowed whole numbers).")
    return tuple(parse_int(f"each of {name}", value) for value in values)


ONE_RANK = ParallelOptions()
