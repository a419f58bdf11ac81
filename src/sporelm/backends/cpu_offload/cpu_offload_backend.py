"""CPU offload: a device and the CPU as one back-end. Each weight, cache and call belongs to one of them (ADR 0050)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from sporelm.backends.cpu_offload.device_map import DEVICE, HOST, DeviceMap
from sporelm.backends.cpu_offload.part_tensors import PartCopies, WeightPart
from sporelm.backends.protocol import (
    HOST_TRAITS,
    Backend,
    CallTime,
    CallTimer,
    Fetch,
    Handle,
    MemoryPlanner,
    Program,
    Ready,
    StateShapes,
    WeightArray,
)
from sporelm.backends.reference_fallback import map_values
from sporelm.errors import BackendError
from sporelm.ops import Call, Graph, Op
from sporelm.ops.number_types import NumberTypes
from sporelm.ops.op import leaves
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

States = Sequence[tuple[Tensor, ...]]


class CpuOffloadBackend:
    """The parts DEVICE and HOST, with the weights and caches of one model as a device map divides them.

    Steps wait for each part: inputs have exact extents, the host samples, and nothing overlaps (HOST_TRAITS). A plan
    cuts its graph into segments, which the parts rewrite by rules of their own and compile (`plan/partition.py`). What
    the parts exchange between segments are arrays of the host in float32 or int32.
    """

    rules: tuple[str, ...] = ()  # the parts' rules are applied to the segments
    traits = HOST_TRAITS
    padded_ops: Collection[str] = ()

    def __init__(self, device: Backend, host: Backend, device_map: DeviceMap, *, owns_parts: bool = True) -> None:
        """owns_parts   close the parts with this back-end; False for a second model on the same parts"""
        device.traits = replace(device.traits, input_buckets=None)  # steps have exact extents, so no shape comes often
        self.parts: tuple[Backend, Backend] = (device, host)
        self.device_map, self.page_parts, self.state_parts = device_map, device_map.pages, device_map.states
        self.name = f"{device.name}+{host.name}"
        self.context = device.context  # the host's is trivial: copies of its caches are complete at once
        self.step_buckets: Mapping[str, int] = shared_buckets(device, host)
        self._owns_parts = owns_parts
        self._closed = False

    # ---- its parts (see `CompositeBackend`)

    def weight_part(self, name: str) -> int:
        return self.device_map.weights.get(name, HOST)

    def backend_of_weight(self, name: str) -> Backend:
        return cast(Backend, WeightPart(self, self.weight_part(name)))

    def part_of_call(self, call: Call) -> int | None:
        """See `CompositeBackend`. With weights on several parts, the weights that cannot be copied decide."""
        homes: dict[bool, int] = {}  # the first one found, by whether its tensor can be copied
        for tensor in leaves(call.args):
            if isinstance(tensor, Tensor) and tensor.storage.home is not None:
                homes.setdefault(self.is_plain(tensor), tensor.storage.home)
        return homes.get(False, homes.get(True))

    def local(self, tensor: Tensor, part: int) -> Tensor:
        stored: PartCopies = tensor.storage
        with stored.lock:
            if part not in stored.copies:
                source = next(iter(stored.copies.values()))
                stored.copies[part] = self.parts[part].tensor(source.numpy())
            found = stored.copies[part]
        return found if found.layout == tensor.layout else found.view(tensor.layout)

    def local_bucket(self, bucket: str, part: int) -> str:
        limit = self.step_buckets[bucket]
        return next(name for name, most in self.parts[part].step_buckets.items() if limit <= most)

    def own(self, tensor: Tensor, part: int, home: int | None = None) -> Tensor:
        """Return a tensor of a part as one of this back-end's."""
        return Tensor(tensor.dtype, tensor.layout, PartCopies({part: tensor}, home), self)

    # ---- hardware

    def probe(self) -> Ready:
        """Return the split, and the details of both parts; those of the host have its name before theirs."""
        details = {"split": self.device_map.description}
        for part, prefix in zip(self.parts, ("", f"{self.parts[HOST].name} "), strict=True):
            state = part.probe()
            details |= {prefix + name: text for name, text in state.details.items()} if isinstance(state, Ready) else {}
        return Ready(details)

    def missing_kernels(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.missing_kernels()})

    def number_types(self, op: Op) -> NumberTypes:
        return self.parts[DEVICE].number_types(op)

    @property
    def strict(self) -> bool:
        return self.parts[DEVICE].strict

    @strict.setter
    def strict(self, value: bool) -> None:
        for part in self.parts:
            part.strict = value

    def free_bytes(self) -> int | None:
        return self.parts[DEVICE].free_bytes()

    def total_bytes(self) -> int | None:
        return self.parts[DEVICE].total_bytes()

    def measure_limits(self) -> Mapping[str, float]:
        """Measure both parts. A rate is that of a token, which reads the weights of one part after the other's."""
        rates, total = [part.measure_limits() for part in self.parts], sum(self.device_map.read_bytes)
        return {
            key: total / sum(nbytes / rate[key] for nbytes, rate in zip(self.device_map.read_bytes, rates, strict=True))
            for key in rates[DEVICE]
        }

    def measure_stream(self) -> float:
        """Measure both parts, as `measure_limits` does."""
        read_bytes = self.device_map.read_bytes
        seconds = [nbytes / part.measure_stream() for nbytes, part in zip(read_bytes, self.parts, strict=True)]
        return sum(read_bytes) / sum(seconds)

    def time_calls(self) -> Callable[[], list[CallTime]]:
        """See `CallTimer`. A part that does not time calls adds none."""
        takes = [part.time_calls() for part in self.parts if isinstance(part, CallTimer)]
        return lambda: [each for take in takes for each in take()]

    def synchronize(self) -> None:
        for part in self.parts:
            part.synchronize()

    def close(self) -> None:
        if self._closed or not self._owns_parts:
            return
        self._closed = True
        try:
            self.parts[DEVICE].close()
        finally:
            self.parts[HOST].close()

    # ---- tensors

    def tensor(self, array: np.ndarray) -> Tensor:
        """Copy an array to the host; a part that uses it gets a copy then."""
        return self.own(self.parts[HOST].tensor(array), HOST)

    def pack(self, weight: WeightArray) -> Tensor:
        """Pack a weight on the host; `backend_of_weight` is for weights with a name."""
        return self.own(self.parts[HOST].pack(weight), HOST, HOST)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        return self.parts[HOST].packed_bytes(format, shape)

    def is_plain(self, tensor: Tensor) -> bool:
        copy: Tensor = next(iter(tensor.storage.copies.values()))
        return self._part_of(tensor).is_plain(copy)

    def to_numpy(self, tensor: Tensor) -> np.ndarray:
        return self.local(tensor, next(iter(tensor.storage.copies))).numpy()

    def contiguous(self, tensor: Tensor) -> Tensor:
        part = next(iter(tensor.storage.copies))
        shown = self.local(tensor, part)
        settled = shown.contiguous()
        return tensor if settled is shown else self.own(settled, part, tensor.storage.home)

    def _part_of(self, tensor: Tensor) -> Backend:
        return self.parts[next(iter(tensor.storage.copies))]

    # ---- pages

    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        self._check_count("caches of pages", len(kept), self.page_parts)
        found: dict[int, Tensor] = {}
        try:
            for part, backend in enumerate(self.parts):
                numbers = [number for number, home in enumerate(self.page_parts) if home == part]
                caches = backend.allocate_pages(count, [kept[number] for number in numbers], dtype) if numbers else []
                found |= {number: self.own(cache, part, part) for number, cache in zip(numbers, caches, strict=True)}
        except BaseException:
            self.free_pages(list(found.values()))
            raise
        return [found[number] for number in range(len(kept))]

    def free_pages(self, caches: Sequence[Tensor]) -> None:
        for part, group in self._by_part(caches).items():
            self.parts[part].free_pages(group)

    def page_bytes(self, kept: tuple[int, ...], dtype: ElementType) -> int:
        """Return the bytes of a page on the host; `page_parts` says which caches the device has."""
        return self.parts[HOST].page_bytes(kept, dtype)

    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return self._part_of(cache).export_pages(self._inner(cache), pages)

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        self._part_of(cache).import_pages(self._inner(cache), pages, canonical)

    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetch:
        return self._part_of(cache).start_export_pages(self._inner(cache), pages)

    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        for part, group in self._by_part(caches).items():
            self.parts[part].copy_pages(group, copies)

    def _check_count(self, title: str, count: int, parts: Sequence[int]) -> None:
        if count != len(parts):
            raise BackendError(f"device map: wrong number of {title} (got {len(parts)}; allowed {count}).")

    def _inner(self, tensor: Tensor) -> Tensor:
        copy: Tensor = next(iter(tensor.storage.copies.values()))
        return copy

    def _by_part(self, tensors: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        """Return the parts' tensors, by part."""
        found: dict[int, list[Tensor]] = {}
        for tensor in tensors:
            found.setdefault(tensor.storage.home, []).append(self._inner(tensor))
        return found

    # ---- recurrent states

    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        self._check_count("recurrent states", len(layers), self.state_parts)
        found: dict[int, tuple[Tensor, ...]] = {}
        try:
            for part, backend in enumerate(self.parts):
                numbers = [number for number, home in enumerate(self.state_parts) if home == part]
                states = backend.allocate_states(count, [layers[number] for number in numbers]) if numbers else []
                for number, tensors in zip(numbers, states, strict=True):
                    found[number] = tuple(self.own(tensor, part, part) for tensor in tensors)
        except BaseException:
            self.free_states(list(found.values()))
            raise
        return [found[number] for number in range(len(layers))]

    def free_states(self, caches: States) -> None:
        for part, group in self._states_by_part(caches).items():
            self.parts[part].free_states(group)

    def state_bytes(self, layers: Sequence[StateShapes]) -> int:
        if len(layers) != len(self.state_parts):
            return self.parts[HOST].state_bytes(layers)
        return sum(
            backend.state_bytes([layer for layer, home in zip(layers, self.state_parts, strict=True) if home == part])
            for part, backend in enumerate(self.parts)
        )

    def copy_states(self, caches: States, copies: Sequence[tuple[int, int]]) -> None:
        for part, group in self._states_by_part(caches).items():
            self.parts[part].copy_states(group, copies)

    def export_states(self, caches: States, states: Sequence[int]) -> list[np.ndarray]:
        return [
            array
            for cache in caches
            for part, group in self._states_by_part([cache]).items()
            for array in self.parts[part].export_states(group, states)
        ]

    def import_states(self, caches: States, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        done = 0
        for cache in caches:
            for part, group in self._states_by_part([cache]).items():
                self.parts[part].import_states(group, states, arrays[done : done + len(cache)])
            done += len(cache)

    def _states_by_part(self, caches: States) -> dict[int, list[tuple[Tensor, ...]]]:
        found: dict[int, list[tuple[Tensor, ...]]] = {}
        for cache in caches:
            if cache:
                found.setdefault(cache[0].storage.home, []).append(tuple(map(self._inner, cache)))
        return found

    # ---- inputs and outputs of programs

    def upload(self, array: np.ndarray) -> Handle:
        return array

    def fetch(self, handle: Handle) -> np.ndarray:
        return self._owner_of(handle).fetch(handle)

    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        return self._owner_of(handle).fetch_rows(handle, rows)

    def start_fetch(self, handle: Handle) -> Fetch:
        return self._owner_of(handle).start_fetch(handle)

    def _owner_of(self, handle: Handle) -> Backend:
        return self.parts[HOST if isinstance(handle, np.ndarray) else DEVICE]

    # ---- running

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Run one op where its weights or caches lie, else where its first argument does."""
        part = self.part_of_call(Call(op, tuple(args), options, ()))
        if part is None:
            part = next((part for tensor in leaves(args) for part in tensor.storage.copies), HOST)
        results = self.parts[part].run(op, map_values(args, lambda tensor: self.local(tensor, part)), options)
        if isinstance(results, tuple):
            return tuple(self.own(each, part) for each in results)
        return None if results is None else self.own(results, part)

    def kernel(self, call: Call, bucket: str) -> Any | None:
        """Return the kernel of a part that may run a call; None if one of them lacks it."""
        home, kernels = self.part_of_call(call), []
        for part in range(len(self.parts)) if home is None else [home]:
            args = map_values(call.args, partial(self._as_local, part=part))
            local = Call(call.op, args, call.options, call.results)
            kernels.append(self.parts[part].kernel(local, self.local_bucket(bucket, part)))
        return None if any(kernel is None for kernel in kernels) else kernels[0]

    def _as_local(self, value: Any, part: int) -> Any:
        return self.local(value, part) if isinstance(value, Tensor) else value

    def compile(self, graph: Graph) -> Program | None:
        return None

    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        raise BackendError(f"{self.name} has no programs of its own: a plan compiles the segments of its parts")


def shared_buckets(device: Backend, host: Backend) -> dict[str, int]:
    """Return the host's step buckets, as far as the device has steps of as many tokens."""
    limit = max(device.step_buckets.values())
    buckets = {name: most for name, most in host.step_buckets.items() if most <= limit}
    return buckets or {next(iter(host.step_buckets)): limit}
