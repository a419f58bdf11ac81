"""Our CPU kernels on torch's memory.

A program is compiled once for each op, its options and the addresses of its weights. Activations are read and written
where torch has them (`AddressedProgram`), unless their rows are not whole runs of 64 numbers: those are copied.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from ctypes import c_uint8
from functools import partial
from math import prod
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sporelm import ops
from sporelm.adaptors.torch.decoder_layer import KeyValuePages, PackedLayer, layer_graph
from sporelm.adaptors.torch.gated_weights import GatedWeights
from sporelm.backends.cpu import CpuBackend
from sporelm.backends.cpu.addressed_program import AddressedProgram
from sporelm.backends.cpu.lowering.op_lowering import rowwise_ops
from sporelm.backends.cpu.runtime.host_memory import Region
from sporelm.backends.cpu.runtime.tensor_storage import (
    ROW_VALUES,
    PackedExperts,
    PackedMatrix,
    value_bytes,
)
from sporelm.backends.protocol import Placement
from sporelm.ops import Graph, Spec, Symbol, trace
from sporelm.ops.paged_attention import PAGE
from sporelm.plan.memory_planner import Lifetime, plan_offsets
from sporelm.plan.plan import find_lifetimes
from sporelm.plan.rewrite_rules import rewrite
from sporelm.quant import format_of, quantize_tensor
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32, I32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor as PackedTensor

MAX_ROWS = 512  # of a run; longer inputs are cut
MAX_PROGRAMS = 8192  # the least recently used is evicted
ARENA_BYTES = 1 << 26  # untouched bytes cost nothing
MAX_PAGES = 1 << 16  # of a cache of one call of attention
TABLE_PAGES = (1 << 5, 1 << 9, 1 << 13, MAX_PAGES)  # sizes of a layer's page table; each has a program of its own
ALIGNMENT = 64
BuildGraph = Callable[[Symbol | int], Graph]


class HostKernels:
    """The CPU back-end with programs for torch's ops. Calls of several threads run one after the other."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.backend = CpuBackend(threads)
        self._lock = RLock()
        self._arena = Region(ARENA_BYTES)
        self._programs: OrderedDict[Any, AddressedProgram] = OrderedDict()
        self._caches: OrderedDict[Any, Any] = OrderedDict()
        self._last_step: LayerStep | None = None

    def close(self) -> None:
        """Free the programs and stop the threads."""
        with self._lock:
            for program in self._programs.values():
                program.free()
            self._programs.clear()
            for cache in self._caches.values():
                self.backend.free_pages([cache])
            self._caches.clear()
            self.backend.close()

    # ---- programs

    def _program(self, key: Any, build: Callable[[], Graph], caches: Sequence[PackedTensor] = ()) -> AddressedProgram:
        found = self._programs.get(key)
        if found is not None:
            self._programs.move_to_end(key)
            return found
        graph = rewrite(build(), self.backend.rules)
        placement = place_inner_values(graph)
        if placement.nbytes > self._arena.array.size:
            self._arena = Region(2 * placement.nbytes)
        backend = self.backend
        owned = backend.compiler, backend.thread_pool, backend.context
        found = AddressedProgram(graph, placement, *owned, self._arena, caches)
        backend.compiler.release_llvm_memory()
        self._programs[key] = found
        if len(self._programs) > MAX_PROGRAMS:
            self._programs.popitem(last=False)[1].free()
        return found

    def _run_rows(
        self, key: Any, build: BuildGraph, rows: Sequence[Tensor], others: Sequence[Tensor], widths: Sequence[int]
    ) -> list[Tensor]:
        """Run a graph whose first inputs have a row for each token, and whose outputs have one of these widths.

        Returns the outputs, float32 [tokens, width] each: views of rows that are longer.
        """
        count = len(rows[0])
        outs = [torch.empty(count, row_width(width)) for width in widths]
        with self._lock:
            for start in range(0, count, MAX_ROWS):
                stop = min(start + MAX_ROWS, count)
                single = stop - start == 1
                build_part = partial(build, 1 if single else Symbol("tokens", MAX_ROWS))
                program = self._program((key, single), build_part)
                parts = [*rows, *outs] if count <= MAX_ROWS else [each[start:stop] for each in (*rows, *outs)]
                given, results = parts[: len(rows)], parts[len(rows) :]
                addresses = [each.data_ptr() for each in (*given, *others, *results)]
                program.run_at(addresses, {} if single else {"tokens": stop - start})
        return [out if out.shape[1] == width else out[:, :width] for out, width in zip(outs, widths, strict=True)]

    # ---- weights

    def packed_bytes(self, format_name: str, shape: Sequence[int]) -> int:
        """Return the bytes of `pack`'s result."""
        return self.backend.packed_bytes(format_of(format_name), tuple(shape))

    def pack(self, blocks: Tensor, format_name: str, shape: Sequence[int]) -> Tensor:
        """Return a weight's blocks, uint8, in the layout of this CPU's kernels: uint8 [bytes]."""
        array = blocks.contiguous().numpy()
        stored = StoredTensor("weight", format_of(format_name), tuple(shape), array)
        with self._lock:
            packed = self.backend.pack(stored)
        return torch.from_numpy(packed.storage.array)

    def quantize(self, values: Tensor, format_name: str) -> Tensor:
        """Return a matrix or stacked matrices as blocks: float [..., width] -> uint8 [..., bytes of a row]."""
        form, width = format_of(format_name), values.shape[-1]
        row_bytes = form.tensor_nbytes((width,))
        table = values.detach().reshape(-1, width)
        result = torch.empty(len(table), row_bytes, dtype=torch.uint8)
        graph = _quantizing(form.name, width, Symbol("tokens", MAX_ROWS)) if width % ROW_VALUES == 0 else None
        has_kernel = graph is not None and self.backend.kernel(graph.calls[0], "many") is not None
        with self._lock:
            for start in range(0, len(table), MAX_ROWS):
                part = table[start : start + MAX_ROWS].float().contiguous()
                if not torch.isfinite(part).all() or not has_kernel:  # the reference says where they are
                    result[start : start + len(part)] = torch.from_numpy(
                        quantize_tensor(form, part.numpy()).reshape(len(part), row_bytes)
                    )
                    continue
                program = self._program(
                    ("quantize", form.name, width), lambda: _quantizing(form.name, width, Symbol("tokens", MAX_ROWS))
                )
                into = result[start : start + len(part)]
                program.run_at([part.data_ptr(), into.data_ptr()], {"tokens": len(part)})
        return result.reshape(*values.shape[:-1], row_bytes)

    def weight(self, packed: Tensor, format_name: str, shape: Sequence[int]) -> PackedTensor:
        """Return packed bytes as a weight of the back-end. The caller keeps the memory alive."""
        form, kind = format_of(format_name), self.backend.kind_of(format_of(format_name))
        address, nbytes = packed.data_ptr(), packed.numel()
        if nbytes != self.packed_bytes(format_name, shape):
            raise ValueError(
                f"packed: not a weight {format_name} {list(shape)} of this CPU's layout (got {nbytes} bytes; allowed"
                f" {self.packed_bytes(format_name, shape)}). Pack the blocks on this machine."
            )
        if address % ALIGNMENT:
            raise ValueError(f"packed: memory is not aligned to {ALIGNMENT} bytes. Copy it with `clone()`.")
        array = np.ctypeslib.as_array((c_uint8 * nbytes).from_address(address))
        storage = (PackedMatrix if len(shape) == 2 else PackedExperts)(array, tuple(shape), kind)
        return PackedTensor(form, Layout.contiguous(tuple(shape)), storage, self.backend)

    # ---- ops

    def linear(self, x: Tensor, packed: Tensor, bias: Tensor | None, format_name: str, shape: Sequence[int]) -> Tensor:
        """Return x @ weight.T + bias for rows float32 [tokens, in]."""
        out, width = shape

        def build(tokens: Symbol | int) -> Graph:
            weight = self.weight(packed, format_name, shape)
            specs = {"x": Spec((tokens, width), F32)}
            if bias is None:
                return trace(lambda x: {"y": ops.linear(x, weight)}, specs)
            return trace(lambda x, bias: {"y": ops.linear(x, weight, bias)}, specs | {"bias": Spec((out,), F32)})

        key = ("linear", packed.data_ptr(), format_name, *shape, bias is None)
        others = [] if bias is None else [to_vector(bias)]
        return self._run_rows(key, build, [to_rows(x)], others, [out])[0]

    def _gated(self, weights: GatedWeights) -> list[PackedTensor]:
        """Return gate, up and down as weights of the back-end."""
        formats = (weights.format, weights.format, weights.down_format)
        shapes = (weights.shape, weights.shape, weights.down_shape)
        return [self.weight(*each) for each in zip(weights[:3], formats, shapes, strict=True)]

    def gated_mlp(self, x: Tensor, weights: GatedWeights, kind: str) -> Tensor:
        """Return (activate(x @ gate.T) * (x @ up.T)) @ down.T for rows float32 [tokens, width]."""
        width = x.shape[-1]

        def build(tokens: Symbol | int) -> Graph:
            gate, up, down = self._gated(weights)

            def run(x: Any) -> dict[str, Any]:
                if kind == "silu":
                    return {"y": ops.linear(ops.linear_silu_mul(x, gate, up), down)}
                return {"y": ops.linear(ops.linear_activate_mul(x, gate, up, kind=kind), down)}

            return trace(run, {"x": Spec((tokens, width), F32)})

        return self._run_rows(("mlp", weights.key, kind), build, [to_rows(x)], [], [width])[0]

    def experts(self, x: Tensor, weights: GatedWeights, ids: Tensor, factors: Tensor) -> Tensor:
        """Return the sum over each row's experts of factor * (silu(x @ gate.T) * (x @ up.T)) @ down.T.

        x float32 [tokens, width], ids int32 and factors float32 [tokens, k]
        """
        width, k = x.shape[-1], ids.shape[1]

        def build(tokens: Symbol | int) -> Graph:
            gate, up, down = self._gated(weights)

            def run(x: Any, ids: Any, factors: Any) -> dict[str, Any]:
                hidden = ops.linear_experts_silu_mul(x, gate, up, ids)
                return {"y": ops.combine_experts(ops.linear_experts(hidden, down, ids), factors)}

            specs = {"x": Spec((tokens, width), F32), "ids": Spec((tokens, k), I32)}
            return trace(run, specs | {"factors": Spec((tokens, k), F32)})

        rows = [to_rows(x), ids.to(torch.int32).contiguous(), to_rows(factors)]
        return self._run_rows(("experts", weights.key, k), build, rows, [], [width])[0]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return rows float32 [tokens, width] divided by their root mean squares, times the weight [width]."""
        width = x.shape[-1]

        def build(tokens: Symbol | int) -> Graph:
            return trace(
                lambda x, weight: {"y": ops.rms_norm(x, weight, eps=eps)},
                {"x": Spec((tokens, width), F32), "weight": Spec((width,), F32)},
            )

        return self._run_rows(("rms_norm", width, eps), build, [to_rows(x)], [to_vector(weight)], [width])[0]

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return silu(gate) * up for rows float32 [tokens, width]."""
        width = gate.shape[-1]

        def build(tokens: Symbol | int) -> Graph:
            spec = Spec((tokens, width), F32)
            return trace(lambda gate, up: {"y": ops.silu_mul(gate, up)}, {"gate": spec, "up": spec})

        return self._run_rows(("silu_mul", width), build, [to_rows(gate), to_rows(up)], [], [width])[0]

    def rotary(self, x: Tensor, table: Tensor, head_dim: int, style: str) -> Tensor:
        """Rotate the heads of rows float32 [tokens, heads * head_dim] by the row of the table [tokens, rotary] each:
        cosines, then sines."""
        width, rotary = x.shape[-1], table.shape[-1]

        def build(tokens: Symbol | int) -> Graph:
            def run(x: Any, positions: Any, table: Any) -> dict[str, Any]:
                return {"y": ops.rope(x, positions, table, head_dim=head_dim, style=style)}

            specs = {"x": Spec((tokens, width), F32), "positions": Spec((tokens,), I32)}
            return trace(run, specs | {"table": Spec((tokens, rotary), F32)})

        # Each run counts its rows from 0: its part of the table begins there too.
        rows = to_rows(x)
        positions = torch.arange(len(rows), dtype=torch.int32).remainder_(MAX_ROWS)
        key = ("rotary", width, rotary, head_dim, style)
        return self._run_rows(key, build, [rows, positions, to_rows(table)], [], [width])[0]

    def span_attention(self, q: Tensor, k: Tensor, v: Tensor, spans: Tensor, head_dim: int, scale: float) -> Tensor:
        """Attend from rows [tokens, heads * head_dim] to the span [begin, end) of keys of each, int32 [tokens, 2].

        k and v are float32 [keys, kv_heads * head_dim]. Spans ascend.
        """
        width, kv_width, keys = q.shape[-1], k.shape[-1], Symbol("keys", 1 << 30)

        def build(tokens: Symbol | int) -> Graph:
            specs = {"q": Spec((tokens, width), F32), "spans": Spec((tokens, 2), I32)}
            specs |= {"k": Spec((keys, kv_width), F32), "v": Spec((keys, kv_width), F32)}

            def run(q: Any, spans: Any, k: Any, v: Any) -> dict[str, Any]:
                return {"y": ops.cross_attention(q, k, v, spans, head_dim=head_dim, scale=scale)}

            return trace(run, specs)

        key = ("spans", width, kv_width, head_dim, scale)
        rows = [to_rows(q), spans.to(torch.int32).contiguous()]
        return self._run_rows(key, build, rows, [to_rows(k), to_rows(v)], [width])[0]

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor, head_dim: int, scale: float) -> Tensor:
        """Attend from rows [tokens, heads * head_dim], the last ones of a sequence, to its keys and values up to each.

        k and v are float32 [keys, kv_heads * head_dim]; keys >= tokens. They are copied to pages first.
        """
        tokens, width, (keys, kv_width) = len(q), q.shape[-1], k.shape
        num_pages = 1 << max(0, -(-keys // PAGE) - 1).bit_length()
        if num_pages > MAX_PAGES:
            raise ValueError(f"attention: too many keys (got {keys}; at most {MAX_PAGES * PAGE}). Attend in parts.")
        out = torch.empty(tokens, row_width(width))
        with self._lock:
            cache = self._page_cache(num_pages, kv_width // head_dim, head_dim)

            def build() -> Graph:
                rows, held = Symbol("tokens", 1 << 30), Symbol("keys", 1 << 30)
                specs = {"q": Spec((rows, width), F32), "k": Spec((held, kv_width), F32)}
                specs |= {"v": Spec((held, kv_width), F32), "slots": Spec((held,), I32), "starts": Spec((2,), I32)}
                specs |= {"lengths": Spec((1,), I32), "pages": Spec((1, num_pages), I32)}

                def run(q: Any, k: Any, v: Any, slots: Any, starts: Any, lengths: Any, pages: Any) -> dict[str, Any]:
                    ops.store_kv(k, v, cache, slots)
                    return {"y": ops.attention(q, cache, starts, lengths, pages, scale=scale)}

                return trace(run, specs)

            program = self._program(("causal", num_pages, width, kv_width, head_dim, scale), build)
            starts, lengths = np.array([0, tokens], np.int32), np.array([keys], np.int32)
            slots = torch.arange(keys, dtype=torch.int32)
            pages = torch.arange(num_pages, dtype=torch.int32)
            given = [to_rows(q), to_rows(k), to_rows(v)]
            addresses = [*(each.data_ptr() for each in (*given, slots)), starts.ctypes.data, lengths.ctypes.data]
            program.run_at(
                [*addresses, pages.data_ptr(), out.data_ptr()],
                {"tokens": tokens, "keys": keys},
                {"starts": starts, "lengths": lengths},
            )
        return out[:, :width]

    def decoder_layer(self, layer: PackedLayer, x: Tensor, table: Tensor, pages: KeyValuePages | None) -> list[Tensor]:
        """Run a layer on the next rows of a sequence: x [tokens, width] and the rotary table of these rows.

        pages   hold the keys and values of the rows before, and get those of these rows; None: no rows
                before, and these keys and values are dropped

        Returns the layer's results, float32 [tokens, width]. A layer without an MLP returns two: the sum to which the
        MLP's results are added, and the MLP's input.
        """
        shape, rows, tables = layer.shape, to_rows(x), to_rows(table)
        count, begin, rotary = len(rows), 0 if pages is None else pages.length, table.shape[-1]
        num_pages = next((size for size in TABLE_PAGES if size * PAGE >= begin + count), 0)
        if not num_pages:
            raise ValueError(f"layer: too many keys (got {begin + count}; at most {MAX_PAGES * PAGE}). Crop the cache.")
        outs = [torch.empty(count, row_width(shape.width)) for _ in range(1 if shape.kind else 2)]
        key, vectors = layer.key, [each.data_ptr() for each in layer.vectors.values()]
        with self._lock:
            cache = self._page_cache(num_pages, shape.kv_heads, shape.head_dim)
            if pages is not None:
                pages.reserve(begin + count)
            memory = cache.storage.address if pages is None else pages.memory.data_ptr()
            for start in range(0, count, MAX_ROWS):
                number = min(count - start, MAX_ROWS)
                single = number == 1

                def build(single: bool = single) -> Graph:
                    sizes = shape.matrices().items()
                    weights = {name: self.weight(layer.matrices[name], shape.format, size) for name, size in sizes}
                    tokens = 1 if single else Symbol("tokens", MAX_ROWS)
                    return layer_graph(layer, weights, cache, tokens, rotary, num_pages)

                program = self._program((key, single, rotary, num_pages), build, [cache])
                step = self._step_of(begin + start, number, num_pages)
                x_at, table_at, *out_at = (
                    each.data_ptr() + 4 * start * each.stride(0) for each in (rows, tables, *outs)
                )
                addresses = [x_at, step.addresses[0], table_at, *step.addresses[1:], *vectors, *out_at, memory]
                program.run_at(addresses, {} if single else {"tokens": number}, step.sequences)
        if pages is not None:
            pages.length = begin + count
        return [out if out.shape[1] == shape.width else out[:, : shape.width] for out in outs]

    def _step_of(self, begin: int, count: int, num_pages: int) -> "LayerStep":
        """Return the arrays of a step of a layer; all layers of a model have the same ones."""
        if self._last_step is None or self._last_step.key != (begin, count, num_pages):
            self._last_step = LayerStep.of(begin, count, num_pages)
        return self._last_step

    def _page_cache(self, num_pages: int, kv_heads: int, head_dim: int) -> Any:
        """Return pages that hold the keys and values of one call, used again by the next one."""
        key = (num_pages, kv_heads, head_dim)
        if key not in self._caches:
            self._caches[key] = self.backend.allocate_pages(num_pages, [(kv_heads, head_dim)], F32)[0]
        return self._caches[key]


class LayerStep(NamedTuple):
    """The arrays that say which rows of a sequence a step of a decoder layer computes.

    addresses   of the rows' positions in the rotary table, their slots, `starts`, `lengths` and the page table
    sequences   `starts` and `lengths`
    """

    key: tuple[int, int, int]
    addresses: list[int]
    sequences: dict[str, np.ndarray]
    arrays: list[np.ndarray]  # keeps them alive

    @classmethod
    def of(cls, begin: int, count: int, num_pages: int) -> "LayerStep":
        """Return the arrays for rows `begin` to `begin + count`, with a table of this many pages."""
        starts, lengths = np.array([0, count], np.int32), np.array([begin + count], np.int32)
        positions, slots, pages = (
            np.arange(first, last, dtype=np.int32)
            for first, last in ((0, count), (begin, begin + count), (0, num_pages))
        )
        arrays = [positions, slots, starts, lengths, pages]
        addresses = [each.ctypes.data for each in arrays]
        return cls((begin, count, num_pages), addresses, {"starts": starts, "lengths": lengths}, arrays)


def place_inner_values(graph: Graph) -> Placement:
    """Return the place of each value in the arena; inputs and outputs, which are the caller's, take no room."""
    given = {id(value) for value in (*graph.inputs.values(), *graph.outputs.values())}
    lives = find_lifetimes(graph, rowwise_ops())
    inner = {key: life for key, life in lives.items() if key not in given}
    placed = plan_offsets([Lifetime(value_bytes(value.spec), first, last) for value, first, last in inner.values()])
    offsets = dict.fromkeys(given, 0) | dict(zip(inner, placed.offsets, strict=True))
    return Placement(offsets, placed.nbytes)


def _quantizing(format_name: str, width: int, tokens: Symbol) -> Graph:
    def run(x: Any) -> dict[str, Any]:
        return {"y": ops.quantize_blocks(x, format=format_name)}

    return trace(run, {"x": Spec((tokens, width), F32)})


def row_width(width: int) -> int:
    """Return the numbers from one row to the next in the layout that kernels read."""
    return -(-width // ROW_VALUES) * ROW_VALUES


def to_rows(x: Tensor) -> Tensor:
    """Return rows [..., width] as float32 [rows, row_width(width)]: the same memory where that fits."""
    if x.dtype is torch.float32 and x.dim() == 2 and x.shape[1] % ROW_VALUES == 0 and x.is_contiguous():
        return x
    table = x.detach().reshape(prod(x.shape[:-1]), x.shape[-1])
    missing = row_width(table.shape[1]) - table.shape[1]
    table = table.float()
    return pad(table, (0, missing)) if missing else table.contiguous()


def to_vector(x: Tensor) -> Tensor:
    """Return a vector as float32, whole runs of 64 numbers long: kernels read whole vectors."""
    missing = row_width(len(x)) - len(x)
    vector = x.detach().float()
    return pad(vector, (0, missing)) if missing else vector.contiguous()
