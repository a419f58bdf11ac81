"""Opening one rank of a model: its options as they are sent to its process, its group, its weights and its worker."""

from collections.abc import Callable, Mapping, Set
from contextlib import ExitStack, closing
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sporelm.api.model_loader import ModelLoader
from sporelm.api.open_device import open_device
from sporelm.backends.numa_nodes import pin_to
from sporelm.backends.protocol import Backend
from sporelm.checkpoints import open_model
from sporelm.checkpoints.identity import compute_identity
from sporelm.checkpoints.loader import ModelSource
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.distributed.shared_memory_group import SharedMemoryGroup
from sporelm.engine import EngineConfig, Worker
from sporelm.engine.ranks.message_handler import OpenedRank
from sporelm.engine.ranks.messages import RankReady
from sporelm.errors import BackendError, ModelFileError
from sporelm.models.sharded_model import RankPlace, ShardedModel
from sporelm.models.sharding_plan import ShardingPlan

SetPhase = Callable[[str], None]


class GroupSpec(msgspec.Struct, frozen=True):
    """Where ranks meet to exchange values.

    kind   "memory": shared memory of this host, in files; "torch": torch.distributed; "nccl": NCCL within stages, and
           shared memory between them
    stage  of the ranks of one stage; for torch the address of this host, "": that of the connection to rank 0
    world  of the ranks of all stages; "": there is one stage
    """

    kind: str
    stage: str
    world: str = ""


class JoinedGroups(NamedTuple):
    """The groups that a rank is in; `world` is None if there is one stage."""

    stage: Any
    world: Any = None

    def abort(self) -> None:
        """Make the waits of all their ranks end."""
        for group in self:
            if group is not None:
                group.abort()

    def close(self) -> None:
        """Leave them."""
        for group in self:
            if group is not None:
                group.close()


class RankOptions(msgspec.Struct, frozen=True):
    """All that a rank needs to know to load its part of a model.

    path      of the model's file or folder; a worker of another host may have its own
    identity  hash of the model's files, which must be the same on all ranks
    cores     that its threads are pinned to; []: not pinned
    """

    path: str
    identity: str
    backend: str
    device: str
    dtype: str
    threads: int
    strict: bool
    batch_invariant: bool
    kv: str
    dequantize: bool
    eager: bool
    limits: EngineConfig
    parallel: ParallelConfig
    rank: int
    group: GroupSpec
    cores: list[int]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> "RankOptions":
        """Raises BackendError for bytes that are not valid."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError, TypeError) as reason:
            raise BackendError(f"ranks: options are not valid ({reason})") from None


def join_groups(options: RankOptions) -> JoinedGroups:
    """Return a rank's place in its groups. Raises BackendError."""
    spec, parallel = options.group, options.parallel
    if spec.kind not in ("memory", "nccl"):
        raise BackendError(f"ranks: groups of the kind {spec.kind!r:.40} are not supported by this version")
    stage: Any
    if spec.kind == "nccl":
        from sporelm.distributed.torch import TorchGroup

        stage = TorchGroup.connect_nccl(spec.stage, parallel.tp_rank(options.rank), parallel.tp, options.device)
    else:
        stage = SharedMemoryGroup.attach(spec.stage, parallel.tp_rank(options.rank))
    return JoinedGroups(stage, SharedMemoryGroup.attach(spec.world, options.rank) if spec.world else None)


def open_loader(
    source: ModelSource,
    backend: Backend,
    options: RankOptions,
    groups: JoinedGroups,
    plan: ShardingPlan | None = None,
) -> ModelLoader:
    """Return the loader of a rank's part of a model. Raises UnsupportedModel if the model cannot be divided.

    plan   how the model is divided, where this process has planned that
    """
    place = RankPlace(options.parallel, options.rank, groups.stage, groups.world, plan)
    return ModelLoader(source, backend, options.kv, dequantize=options.dequantize, place=place)


def open_rank(
    options: RankOptions,
    set_phase: SetPhase,
    path: Path | None = None,
    groups: JoinedGroups | None = None,
    plan: ShardingPlan | None = None,
) -> OpenedRank:
    """Load one rank of a model. Raises SporeError, also for another model than that of rank 0.

    path    of the model on this host; None: that of the options
    groups  this rank's place in its groups; None: they are joined
    plan    as in `open_loader`
    """
    pin_to(options.cores)
    with ExitStack() as cleanup, closing(open_model(path or Path(options.path))) as source:
        set_phase("hashing")
        identity = compute_identity(source).sha256
        if identity != options.identity:
            raise ModelFileError(
                f"{source.path}: not the model of rank 0 (got the hash {identity[:12]}; allowed "
                f"{options.identity[:12]}). Use the same file on all hosts."
            )
        if groups is None:
            groups = join_groups(options)
        cleanup.callback(groups.close)
        backend = open_device(
            options.backend,
            options.device,
            options.threads,
            options.dtype,
            strict=options.strict,
            batch_invariant=options.batch_invariant,
        )
        cleanup.callback(backend.close)
        model = open_loader(source, backend, options, groups, plan)

        def progress(phase: str, done: int, total: int) -> None:
            set_phase(f"{phase} {100 * done // max(1, total)} %")

        loaded = model.load_decoder(options.limits.max_context, options.threads, progress)  # in threads that enter
        with backend.context.current():
            worker = model.create_worker(loaded, options.limits, progress, eager=options.eager)
        cleanup.callback(worker.close)
        ready = make_ready(options, worker)
        opened = cleanup.pop_all()
        set_phase("")
    return OpenedRank(worker, ready, groups.abort, opened.close)


def make_ready(options: RankOptions, worker: Worker) -> RankReady:
    """Return what rank 0 compares with its own."""
    return RankReady(options.identity, sign_rank(options, worker))


def sign_rank(options: RankOptions, worker: Worker) -> str:
    """Return a hash of all that must be equal on the ranks of a stage: options, limits, the sharding of the model, and
    the plan's collectives."""
    known: dict[str, Any] = {
        name: getattr(options, name) for name in ("kv", "dequantize", "batch_invariant", "eager", "identity")
    }
    known |= {"limits": options.limits, "parallel": options.parallel}
    model, plan = worker.runner.model, worker.runner.plan
    if isinstance(model, ShardedModel):
        known["sharding"] = model.sharding_plan
    if plan is not None:
        known["collectives"] = [call.op.name for call in plan.graph.calls if "group" in call.options]
    return sha256(repr(_canonical(known)).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a value whose text is the same in every process: records and containers with their items in order."""
    if is_dataclass(value):
        return _canonical({each.name: getattr(value, each.name) for each in fields(value)})
    if isinstance(value, Mapping):
        return sorted((str(key), _canonical(each)) for key, each in value.items())
    if isinstance(value, Set):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    return value
