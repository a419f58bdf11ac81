"""The split of a model between a device and the CPU: which layers fit into the device's memory (ADR 0050)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sporelm.api.model_loader import ModelLoader, packed_bytes_per_param
from sporelm.backends.cpu_offload import DEVICE, HOST, CpuOffloadBackend, DeviceMap
from sporelm.backends.protocol import Backend
from sporelm.errors import SporeError
from sporelm.models.blocks.block_memory import State
from sporelm.models.decoder import Decoder
from sporelm.models.params import Param
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.units import in_units

# A token reads one row of these tables: they go to the device last. Norms of embeddings go with them.
LOOKUP_TABLES = ("embedding.weight", "layer_embedding.weight", "positions.weight")
TABLE_BYTES = 4 * 2  # of the rotary table, for each position and column: a float32, twice while it is copied


@dataclass(frozen=True)
class DeviceBudget:
    """The memory of the device, and what has to fit beside the weights.

    nbytes      of weights, caches, RoPE tables and a step's activations; None: unlimited
    num_pages   of the KV cache
    num_states  recurrent states
    num_tokens  of a step
    context     positions of the RoPE table
    """

    nbytes: int | None
    num_pages: int
    num_states: int
    num_tokens: int
    context: int


@dataclass(frozen=True)
class DeviceSplit:
    """A model divided between a device and the CPU.

    device          the name of the device
    device_map      the part of each weight and cache
    layers          the layers whose weights are on the device, except experts if these are on the host
    has_output      whether the output matrix is on the device
    experts_on_host whether all experts are on the host
    weight_bytes    on the device and on the host
    room            bytes that the device has for caches; None: unlimited
    rates           bytes per second that the device and the host read; None: not measured
    """

    device: str
    device_map: DeviceMap
    num_layers: int
    layers: tuple[int, ...]
    has_output: bool
    experts_on_host: bool
    weight_bytes: tuple[int, int]
    room: int | None
    rates: tuple[float, float] | None = None

    @property
    def max_tokens_per_second(self) -> float | None:
        """The tokens per second of one sequence that the bandwidths of both memories allow; None: not measured."""
        if self.rates is None:
            return None
        seconds = sum(nbytes / rate for nbytes, rate in zip(self.device_map.read_bytes, self.rates, strict=True))
        return 1 / max(seconds, 1e-12)

    @property
    def placement(self) -> str:
        """The layers on the device and the rest on the host, with the bytes of weights."""
        on_device, on_host = map(in_units, self.weight_bytes)
        rest = "the experts" if self.experts_on_host and len(self.layers) == self.num_layers else "the rest"
        return f"{self.layer_text} on {self.device} ({on_device} of weights), {rest} on cpu ({on_host})"

    @property
    def layer_text(self) -> str:
        """The layers on the device: "20 of 32 layers (12 to 31) and the output"."""
        text = f"{len(self.layers) or 'none'} of {self.num_layers} layers"
        if 0 < len(self.layers) < self.num_layers:
            text += f" ({self.layers[0]} to {self.layers[-1]})"
        text += " and the output" if self.has_output else ""
        return text + (" without experts" if self.experts_on_host else "")

    def __str__(self) -> str:
        return "; ".join(filter(None, (f"device split: {self.placement}", self._describe_speed())))

    def _describe_speed(self) -> str:
        if self.rates is None:
            return ""
        reads = " and ".join(
            f"{in_units(nbytes)} at {in_units(round(rate))}/s"
            for nbytes, rate in zip(self.device_map.read_bytes, self.rates, strict=True)
        )
        return f"expected: at most {self.max_tokens_per_second:.3g} tokens/s (a token reads {reads})"

    def as_json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "layers": self.num_layers,
            "device_layers": list(self.layers),
            "host_layers": [index for index in range(self.num_layers) if index not in self.layers],
            "output": "device" if self.has_output else "cpu",
            "experts": "cpu" if self.experts_on_host else "with their layers",
            "device_weight_bytes": self.weight_bytes[DEVICE],
            "cpu_weight_bytes": self.weight_bytes[HOST],
            "device_read_bytes": self.device_map.read_bytes[DEVICE],
            "cpu_read_bytes": self.device_map.read_bytes[HOST],
            "max_tokens_per_second": self.max_tokens_per_second,
        }


def measure_split(split: DeviceSplit, device: Backend, host: Backend) -> DeviceSplit:
    """Return the split with the measured bandwidths of both memories; without them if measuring fails."""
    try:
        rates = [each.measure_limits()["stream_bytes_s"] for each in (device, host)]
    except SporeError:
        return split
    return replace(split, rates=(rates[DEVICE], rates[HOST]))


def split_model(
    model: ModelLoader, host: Backend, budget: DeviceBudget, device: str, *, experts_on_host: bool = False
) -> DeviceSplit:
    """Return the split of a model whose `backend` is the device: as many layers as fit, from the last one backwards.

    The output matrix comes first if a layer fits beside it: activations then cross once. Lookup tables, whose rows
    tokens read one by one, come last. Without room for one layer the split has none.
    """
    sizes = SplitSizes(model, host, budget, experts_on_host=experts_on_host)
    for has_output in (True, False):
        chosen = sizes.choose(has_output=has_output)
        if chosen is not None:
            return sizes.build(*chosen, has_output=has_output, device=device)
    return sizes.build((), False, has_output=False, device=device)


def min_split_bytes(model: ModelLoader, host: Backend, budget: DeviceBudget, *, experts_on_host: bool = False) -> int:
    """Return the least bytes of the device with which a layer fits."""
    sizes = SplitSizes(model, host, budget, experts_on_host=experts_on_host)
    return sizes.fixed_bytes(has_output=False) + sizes.layers[-1]


class SplitSizes:
    """The bytes of a model's layers and of its other parts on the device."""

    def __init__(self, model: ModelLoader, host: Backend, budget: DeviceBudget, *, experts_on_host: bool) -> None:
        assert isinstance(model.model, Decoder)
        self.model, self.decoder, self.budget, self.experts_on_host = model, model.model, budget, experts_on_host
        on_both = [
            packed_bytes_per_param(model.source, model.params, backend, dequantize=model.dequantize)
            for backend in (model.backend, host)
        ]
        self._sizes: tuple[Mapping[Param, int], Mapping[Param, int]] = (on_both[DEVICE], on_both[HOST])
        owners: dict[str, int] = {}
        for index, layer in enumerate(self.decoder.layers):
            for param in layer.params():
                owners.setdefault(param.name, index)
        self._owners = owners
        self.layers = [0] * len(self.decoder.layers)
        self.output, self.tables = 0, 0  # bytes of what is in no layer
        for param, nbytes in self._sizes[DEVICE].items():
            if experts_on_host and param.is_experts:
                continue
            if param.name in owners:
                self.layers[owners[param.name]] += nbytes
            elif self._is_table(param):
                self.tables += nbytes
            else:
                self.output += nbytes
        kv = KV_TYPES[model.kv]
        for index, memory in self.decoder.memory_by_layer():
            if isinstance(memory, State):
                self.layers[index] += budget.num_states * model.backend.state_bytes([memory.shapes])
            else:
                self.layers[index] += budget.num_pages * model.backend.page_bytes(memory.position_shape, kv)

    def _is_table(self, param: Param) -> bool:
        """Return whether a token reads one row of a weight alone, or whether it is a norm of these rows."""
        is_tied = self.model.config.tie_embeddings and param.name == "embedding.weight"
        return not is_tied and (param.name in LOOKUP_TABLES or param.name.startswith("embedding_"))

    def fixed_bytes(self, *, has_output: bool) -> int:
        """Return the bytes of a step's values and of position tables, and of the output if it is on the device."""
        step = self.model.step_bytes(self.budget.num_tokens)
        if not has_output:
            step -= 4 * self.budget.num_tokens * self.model.config.vocab
        tables = TABLE_BYTES * self.budget.context * self.model.config.head_dim
        return step + tables + (self.output if has_output else 0)

    def choose(self, *, has_output: bool) -> tuple[tuple[int, ...], bool] | None:
        """Return the layers that fit, and whether the lookup tables do too; None if no layer fits."""
        if self.budget.nbytes is None:
            return tuple(range(len(self.layers))), True
        left = self.budget.nbytes - self.fixed_bytes(has_output=has_output)
        first = len(self.layers)
        while first > 0 and self.layers[first - 1] <= left:
            first -= 1
            left -= self.layers[first]
        if first == len(self.layers):
            return None
        has_tables = has_output and first == 0 and self.tables <= left
        return tuple(range(first, len(self.layers))), has_tables

    def build(self, layers: tuple[int, ...], has_tables: bool, *, has_output: bool, device: str) -> DeviceSplit:
        """Return the split with these layers, and the output and lookup tables if so."""
        weights = {
            param.name: self._choose_part(param, layers, has_tables, has_output) for param in self._sizes[DEVICE]
        }
        pages: list[int] = []
        states: list[int] = []
        for index, memory in self.decoder.memory_by_layer():
            (states if isinstance(memory, State) else pages).append(DEVICE if index in layers else HOST)
        experts = self.model.config.experts
        held, read = [0, 0], [0.0, 0.0]
        for param in self._sizes[DEVICE]:
            part = weights[param.name]
            nbytes = self._sizes[part][param]
            held[part] += nbytes
            used = experts.used / experts.count if experts is not None and param.is_experts else 1
            read[part] += 0 if self._is_table(param) else nbytes * used
        read_bytes = (round(read[DEVICE]), round(read[HOST]))
        room = None
        if self.budget.nbytes is not None:
            room = max(0, self.budget.nbytes - held[DEVICE] - self._values_bytes(has_output=has_output))
        split = DeviceSplit(
            device,
            DeviceMap(weights, tuple(pages), tuple(states), read_bytes),
            len(self.layers),
            layers,
            has_output,
            self.experts_on_host,
            (held[DEVICE], held[HOST]),
            room,
        )
        return replace(split, device_map=replace(split.device_map, description=split.placement))

    def _values_bytes(self, *, has_output: bool) -> int:
        return self.fixed_bytes(has_output=has_output) - (self.output if has_output else 0)

    def _choose_part(self, param: Param, layers: Sequence[int], has_tables: bool, has_output: bool) -> int:
        if self.experts_on_host and param.is_experts:
            return HOST
        if param.name in self._owners:
            is_on_device = self._owners[param.name] in layers
        else:
            is_on_device = has_tables if self._is_table(param) else has_output
        return DEVICE if is_on_device else HOST


def place_draft(draft: ModelLoader, composite: CpuOffloadBackend, part: int) -> CpuOffloadBackend:
    """Return a back-end with all of a draft model on one part of a model's back-end."""
    assert isinstance(draft.model, Decoder)
    memory = [each for _, each in draft.model.memory_by_layer()]
    device_map = DeviceMap(
        {param.name: part for param in draft.params},
        tuple(part for each in memory if not isinstance(each, State)),
        tuple(part for each in memory if isinstance(each, State)),
    )
    return CpuOffloadBackend(composite.parts[DEVICE], composite.parts[HOST], device_map, owns_parts=False)
