"""The base of vendors' back-ends: finds the torch extension, and uses the fused operators that it has.

A function that is `fused` computes one of our ops by operators of the extension. It is used if the extension has all of
them with the arguments that the function passes; otherwise plain torch computes the op, and `probe` says why. Arguments
that an operator does not support are passed on to plain torch call by call; `count_fallbacks` says how often.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from textwrap import shorten
from typing import Any, ClassVar, TypeVar

import torch

from sporelm import ops
from sporelm.backends.device_context import enters_context
from sporelm.backends.protocol import Handle, MemoryPlanner, Missing, Program, Ready
from sporelm.backends.torch import TorchBackend
from sporelm.backends.torch.captured_graphs import GraphDevice, GraphProgram, Outputs
from sporelm.backends.torch.op_functions import op_functions
from sporelm.ops import ALL, Graph, Op

FusedFunction = TypeVar("FusedFunction", bound=Callable[..., Any])
EVIDENCE = "not yet run on the device"
MIN_LOGIT = torch.finfo(torch.float32).min

_FALLBACKS: Counter[tuple[str, str]] = Counter()  # by op and reason


@dataclass(frozen=True)
class Operator:
    """An operator of a vendor's extension, and the names of the arguments that our functions pass.

    name       with its namespace, such as "npu::npu_rms_norm"; a dotted name is a function of a module
    arguments  in any order
    """

    name: str
    arguments: tuple[str, ...]

    def find(self) -> Any:
        """Return the operator, or None if the extension does not have it."""
        namespace, _, name = self.name.partition("::")
        if not name:
            module, _, name = self.name.rpartition(".")
            try:
                return getattr(import_module(module), name, None)
            except Exception:  # each vendor's extension has errors of its own
                return None
        overload, _, _ = name.partition(".")
        packet = getattr(getattr(torch.ops, namespace), overload, None)
        return getattr(packet, name.partition(".")[2] or "default", None) if packet is not None else None

    def find_obstacle(self) -> str:
        """Return why it cannot be called; "" if it can."""
        found = self.find()
        if found is None:
            return f"the extension has no {self.name}"
        if (schema := getattr(found, "_schema", None)) is None:
            return ""  # a function of a module: names are checked where it is called
        known = {argument.name for argument in schema.arguments}
        missing = [name for name in self.arguments if name not in known]
        return f"{self.name} has no argument {', '.join(missing)}" if missing else ""


@dataclass(frozen=True)
class FusedKernel:
    """A function that computes an op by operators of an extension."""

    op: str
    function: Callable[..., Any]
    operators: tuple[Operator, ...]


class FusedKernelTable:
    """The fused functions of one vendor, by op."""

    def __init__(self) -> None:
        self.by_op: dict[str, FusedKernel] = {}

    def fused(self, op: Op, *operators: Operator) -> Callable[[FusedFunction], FusedFunction]:
        """Register the function that computes an op by these operators. It takes what the torch back-end's function for
        the op takes, in any floating type."""

        def register(function: FusedFunction) -> FusedFunction:
            self.by_op[op.name] = FusedKernel(op.name, function, operators)
            return function

        return register


def fall_back(op: Op, reason: str, *args: Any, **options: Any) -> Any:
    """Compute an op by plain torch, and count it."""
    _FALLBACKS[op.name, reason] += 1
    return op_functions()[op.name](*args, **options)


def count_fallbacks() -> dict[str, int]:
    """Return how often plain torch computed an op in the place of a fused operator, by op and reason, since the last
    call of `clear_fallbacks`."""
    return {f"{name}: {reason}": count for (name, reason), count in sorted(_FALLBACKS.items())}


def clear_fallbacks() -> None:
    """Reset the fallback counts."""
    _FALLBACKS.clear()


class TorchGraphCapture:
    """Graph capture through a torch device module with the API of `torch.cuda`; all graphs share one memory pool.

    graph_class   the module's class of graphs, such as "MLUGraph"
    """

    def __init__(self, module: Any, graph_class: str) -> None:
        self.module, self.graph_class = module, graph_class
        self._pool = module.graph_pool_handle()

    def capture(self, work: Callable[[], Outputs]) -> tuple[Any, Outputs]:
        graph = getattr(self.module, self.graph_class)()
        # Other threads go on with their copies meanwhile.
        with self.module.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = work()
        return graph, outputs

    def update(self, graph: Any, arrays: Mapping[str, Handle]) -> None:
        """Do nothing: no launch takes a number from the host."""


class VendorBackend(TorchBackend):
    """The torch back-end on a vendor's device. Options are those of `TorchBackend`; the default device is the vendor's
    first one.

    kind        of its device in torch, such as "npu"
    extension   the package that adds the device to torch, and its operators; "": a build of torch has them
    follows_torch  whether the extension's version begins with that of torch for which it is built
    vendor      its name, for messages
    table       its fused functions
    graph_class the class of captured graphs in torch's module for the device; "": programs run call by call
    """

    kind: ClassVar[str]
    extension: ClassVar[str]
    follows_torch: ClassVar[bool] = True
    vendor: ClassVar[str]
    table: ClassVar[FusedKernelTable]
    graph_class: ClassVar[str] = ""
    remedy = "set the option backend to torch"

    def __init__(
        self,
        threads: int | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        weights: str = "auto",
        batch_invariant: bool = False,
    ) -> None:
        """Open a device. "cpu", the default of `--device`, means the vendor's first one."""
        self.obstacles: dict[str, str] = {}  # why an op's operators are not used
        self.graph_device: GraphDevice | None = None  # of captured launches; None: programs run call by call
        super().__init__(threads, self.kind if device == "cpu" else device, dtype, weights, batch_invariant)

    def probe(self) -> Ready | Missing:
        if self.requested_device.partition(":")[0] not in (self.kind, "meta"):
            return Missing(
                f"not a device of {self.vendor} (got device {self.requested_device!r}; allowed {self.kind})."
                f" Set the option device to {self.kind}"
            )
        if (reason := self.find_extension_obstacle()) and self.requested_device != "meta":
            return Missing(f"{reason}, or {self.remedy}")
        state = super().probe()
        if isinstance(state, Missing):
            return state
        own = sorted(self.table.by_op.keys() - self.obstacles.keys())
        details = dict(state.details) | {
            "extension": self._describe_extension(),
            "fused operators": ", ".join(own) or "none",
            "plain torch": ", ".join(sorted(ALL.keys() - set(own))),
            "graph mode": self._describe_graphs(),
            "evidence": EVIDENCE,
        }
        if self.obstacles:
            details["operators not used"] = "; ".join(f"{name}: {why}" for name, why in sorted(self.obstacles.items()))
        return Ready(details)

    def _describe_graphs(self) -> str:
        if self.graph_device is not None:
            return f"captured steps ({self.graph_class})"
        return f"call by call: torch's module for the device has no {self.graph_class or 'captured graphs'}"

    def _describe_extension(self) -> str:
        found = find_version(self.extension) if self.extension else "torch itself"
        return f"{self.extension} {found or 'not installed'}".strip()

    def find_extension_obstacle(self) -> str:
        """Return why the extension cannot be used; "" if it can. Imports it."""
        if not self.extension:
            return ""
        found = find_version(self.extension)
        if found and self.follows_torch and not matches_torch(found):
            own, wanted = release_of(found), release_of(torch.__version__)
            return (
                f"{self.extension} {found} is for another torch (got torch {torch.__version__}; allowed {own})."
                f" Install {self.extension} {wanted} or torch {own}"
            )
        try:
            import_module(self.extension)
        except (Exception, SystemExit) as error:  # each vendor's extension has errors of its own
            if found is None:
                return f"{self.extension} is not installed. Install it, with the driver of {self.vendor}"
            reason = shorten(f"{type(error).__name__}: {error}", 200)
            return (
                f"{self.extension} {found} does not load with torch {torch.__version__} ({reason}). Check the driver of"
                f" {self.vendor}, install another version of {self.extension}"
            )
        return ""

    def use_device(self, device: torch.device) -> None:
        super().use_device(device)
        self.obstacles = {
            name: reason
            for name, fused in self.table.by_op.items()
            if (reason := next(filter(None, (each.find_obstacle() for each in fused.operators)), ""))
        }
        self.functions: Mapping[str, Callable[..., Any]] = {
            **op_functions(),
            **{name: self.bind(each) for name, each in self.table.by_op.items() if name not in self.obstacles},
        }
        module = torch.get_device_module(device) if device.type == self.kind else None
        names = (self.graph_class, "graph", "graph_pool_handle")
        can_capture = self.graph_class and module is not None and all(hasattr(module, name) for name in names)
        self.graph_device = self.open_graph_device(module) if can_capture else None

    def open_graph_device(self, module: Any) -> GraphDevice:
        """Return the graph-capture object for torch's module for the device."""
        return TorchGraphCapture(module, self.graph_class)

    @enters_context
    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        if self.graph_device is None or self.traits.input_buckets is None:
            return super().program(graph, bucket, plan_memory)
        return self.captured_program(graph)

    def captured_program(self, graph: Graph) -> Program:
        """Return the program of a graph that replays captured launches."""
        assert self.graph_device is not None
        return GraphProgram(graph, self, self.graph_device)

    def bind(self, fused: FusedKernel) -> Callable[..., Any]:
        """Return the function of an op, as programs call it."""
        return fused.function

    def takes_narrow(self, op: Op) -> bool:
        is_fused = op.name in self.table.by_op and op.name not in self.obstacles
        return is_fused or super().takes_narrow(op)


def find_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    for name in (package, package.replace("_", "-")):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def release_of(found: str) -> str:
    """Return the first two numbers of a version, "2.13" of "2.13.0.post1+cpu"."""
    return ".".join(found.partition("+")[0].split(".")[:2])


def matches_torch(found: str) -> bool:
    """Return whether an extension's version begins with that of the installed torch, as vendors number them."""
    return release_of(found) == release_of(torch.__version__)


def narrow_weight(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a weight in the type of activations, converted once: operators take one type for both."""
    if weight.dtype is dtype:
        return weight
    copies: dict[torch.dtype, torch.Tensor] | None = getattr(weight, "narrow_copies", None)
    if copies is None:
        copies = weight.narrow_copies = {}  # type: ignore[attr-defined]
    if dtype not in copies:
        copies[dtype] = weight.to(dtype)
    return copies[dtype]


def route_by_softmax(
    select: Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]],
    logits: torch.Tensor,
    selection_bias: torch.Tensor | None,
    factors: torch.Tensor | None,
    **how: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `ops.route` by an operator that takes the softmax over all experts, then the k largest.

    select   returns weights and ids [tokens, k] of logits float32 [tokens, experts] and k

    The softmax over the chosen ones alone is that over all, divided by the sum of the chosen ones' weights. The
    operator gets the least float32 in place of NaN, which it would spread over the row: such experts are chosen last.
    """
    scores = how.get("scores", "softmax")
    has_groups = how.get("groups", 1) != how.get("top_groups", 1)
    if scores not in ("softmax", "softmax_of_chosen") or selection_bias is not None or has_groups:
        reason = "non-softmax scoring, a selection bias or expert groups"
        weights, ids = fall_back(ops.route, reason, logits, selection_bias, factors, **how)
        return weights, ids
    logits = logits.float()
    is_nan = logits.isnan()
    weights, ids = select(logits.masked_fill(is_nan, MIN_LOGIT), how["k"])
    if scores == "softmax_of_chosen":
        weights, is_nan = weights / weights.sum(dim=1, keepdim=True), is_nan.gather(1, ids.long())
    weights = weights.masked_fill(is_nan.any(dim=1, keepdim=True), torch.nan)
    if how.get("renormalize"):
        weights = weights / (weights.sum(dim=1, keepdim=True) + how.get("epsilon", 0.0))
    weights = weights * how.get("scale", 1.0)
    return (weights if factors is None else weights * factors[ids.long()]), ids.int()


def host_list(values: Any) -> list[int]:
    """Return numbers that an operator takes as a list: of an array of the host, or of an upload with `host_values`.

    Raises RuntimeError for a tensor whose numbers are on the device only.
    """
    numbers = getattr(values, "host_values", values)
    if isinstance(numbers, torch.Tensor):
        raise RuntimeError(
            "lengths: no copy on the host, but the operator takes a list. Upload them with `upload` as int32."
        )
    return [int(each) for each in numbers]
