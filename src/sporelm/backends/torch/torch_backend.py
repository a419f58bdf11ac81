"""The torch back-end: memory, weights and pages on one torch.device. Op functions are in the other files."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch

from sporelm.backends.context import Context
from sporelm.backends.device_context import DeviceContext, enters_context
from sporelm.backends.fetched import Fetched
from sporelm.backends.function_backend import FunctionBackend
from sporelm.backends.protocol import (
    HOST_TRAITS,
    DeviceTraits,
    Fetch,
    Handle,
    InputBuckets,
    Missing,
    Ready,
    WeightArray,
)
from sporelm.backends.stacked_experts import list_matrices
from sporelm.backends.torch.activation_types import ACTIVATION_TYPES, NARROW_TYPES, number_types_of, round_results
from sporelm.backends.torch.device_queries import explain_missing_device, read_device_memory, release_cached_memory
from sporelm.backends.torch.int8_blocks import can_pack, pack_blocks, packed_block_bytes
from sporelm.backends.torch.op_functions import op_functions, takes_narrow_numbers
from sporelm.backends.torch.step_context import STEP
from sporelm.backends.torch.torch_fetch import TorchFetch, as_array
from sporelm.backends.torch.torch_pages import cache_bits
from sporelm.backends.torch.torch_resources import TorchDevice, TorchResources
from sporelm.backends.torch.torch_weight import TorchWeight
from sporelm.errors import BackendError, MemoryShortage
from sporelm.ops import Op
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import F32, DType
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

STORED_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
WEIGHT_STORAGE = ("auto", "packed", "dense")
SHORTAGE_PHRASES = ("out of memory", "can't allocate memory")  # in the messages of RuntimeErrors
MAX_STREAMS, MAX_TOKENS = 256, 8192  # of a step on an accelerator
ACCELERATOR_TRAITS = DeviceTraits(
    is_async=True,
    input_buckets=InputBuckets(
        row_block=64,
        decodes=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
        blocks=(0, 1, 2, 4, 8, 16, 32, 64, 128),
        pages=(4, 16, 64, 256, 1024, 4096),
        outputs=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 8192),
    ),
    max_batch=MAX_STREAMS,
    token_budget=MAX_TOKENS,
    memory_share=0.9,
)


class TorchBackend(FunctionBackend):
    """Everything lies on `device`, any that torch knows by name: "cpu", "cuda", "cuda:1", or a vendor's own.

    dtype            type of activations: "f32", "f16" or "bf16"; "auto": f32 on the CPU, else bf16 where the device has
                     it, else f16
    weights          "dense": matrices in the type of activations; "packed": quantized ones as int8 blocks, which are
                     dequantized at each product, 16-bit ones as they are; "auto": dense on the CPU, else packed
    batch_invariant  compute the sums of products in one order. Without it a row's last bits may change with the number
                     of rows beside it: torch's products choose their order by shape
    """

    name = "torch"
    remedy = "set the option device to cpu"  # where a device is missing
    rules = (
        *("add_rms_norm", "add_layer_norm", "linear_silu_mul", "linear_activate_mul", "linear_group"),
        *("rope_store", "quantize_rows"),
    )
    functions: Mapping[str, Callable[..., Any]] = op_functions()
    padded_ops: Collection[str] = ("attention", "latent_attention", "add_lora")
    dtype_choices: tuple[str, ...] = ("auto", *ACTIVATION_TYPES)

    def __init__(
        self,
        threads: int | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        weights: str = "auto",
        batch_invariant: bool = False,
    ) -> None:
        super().__init__()
        for name, value, allowed in (("dtype", dtype, self.dtype_choices), ("weights", weights, WEIGHT_STORAGE)):
            if value not in allowed:
                raise BackendError(
                    f"{name}: not supported by {self.name} (got {value!r}; allowed {', '.join(allowed)}). Change the "
                    f"option {name}."
                )
        self.threads, self.requested_device, self.batch_invariant = threads, device, batch_invariant
        self._requested_dtype, self._requested_weights = dtype, weights
        self._rounded: dict[str, Callable[..., Any]] = {}  # functions by the op's name, for 16-bit activations
        self.resources: TorchResources | None = None  # None: the device has no streams; copies wait
        self.use_device(torch.device("cpu"))

    def probe(self) -> Ready | Missing:
        try:
            found = torch.zeros(1, device=self.requested_device)
            if found.device.type != "meta":
                found.cpu()
            if found.device != self.device:
                self.use_device(found.device)
        except Exception as error:  # each vendor's plug-in has errors of its own
            return Missing(explain_missing_device(self.requested_device, error, self.remedy))
        details = {"torch": torch.__version__, "device": str(self.device), "threads": str(self._num_threads())}
        return Ready(details | {"dtype": self.activation.name, "weights": "packed" if self.packs_weights else "dense"})

    def use_device(self, device: torch.device) -> None:
        """Use a device, and choose what depends on it. Only before anything is allocated."""
        self.device = device
        is_cpu = device.type == "cpu"
        dtype = self._requested_dtype
        if dtype == "auto":
            dtype = "f32" if is_cpu else "bf16" if _has_bf16(device) else "f16"
        self.activation, self.activation_type = ACTIVATION_TYPES["bf16" if dtype == "fp8" else dtype]
        self.packs_weights = self._requested_weights == "packed" or (self._requested_weights == "auto" and not is_cpu)
        self.traits = HOST_TRAITS if is_cpu else ACCELERATOR_TRAITS
        self.step_buckets = {"any": self.traits.token_budget}
        self._open_context()

    def _open_context(self) -> None:
        """Create the context of the device, and its streams and buffers if it is asynchronous."""
        if self.resources is not None:
            self.resources.close()
        self.context, self.resources = Context(self.name), None
        if self.device.type not in ("cpu", "meta"):
            self.context, self.resources = self.open_device(TorchDevice(self.device))

    def open_device(self, device: TorchDevice) -> tuple[DeviceContext, TorchResources | None]:
        """Return the context of an asynchronous device, and its resources; None if it has no streams, events or
        pinned memory."""
        context = DeviceContext(self.name, device.enter, self.explain_shortage)
        with context.current():
            try:
                resources = TorchResources(context, device)
                ones = resources.upload(np.ones(1, np.float32))
                return context, resources if (TorchFetch(resources, ones).result() == 1).all() else None
            except Exception:  # each vendor's plug-in has errors of its own
                return context, None

    # ---- numbers

    def number_types(self, op: Op) -> NumberTypes:
        return number_types_of(op.name, self.activation)

    def find_function(self, op: Op) -> Callable[..., Any] | None:
        function = super().find_function(op)
        if function is None or self.activation is F32:
            return function
        if op.name not in self._rounded or self._rounded[op.name].__wrapped__ is not function:  # type: ignore[attr-defined]
            widens = not self.takes_narrow(op)
            self._rounded[op.name] = round_results(op, function, self.activation_type, widens=widens)
        return self._rounded[op.name]

    def takes_narrow(self, op: Op) -> bool:
        """Return whether an op's function takes float16 and bfloat16 as they are."""
        return takes_narrow_numbers(op.name)

    def to_output(self, stored: torch.Tensor) -> torch.Tensor:
        """Return an output: real numbers are float32, so that what reads logits need not know the activation type."""
        return stored.float() if stored.dtype in NARROW_TYPES else stored

    # ---- memory

    def copy_in(self, array: np.ndarray) -> torch.Tensor:
        if self.resources is not None:
            return self.resources.upload(array)
        return torch.from_numpy(np.array(array, order="C")).to(self.device)

    def copy_out(self, stored: torch.Tensor) -> np.ndarray:
        if stored.device.type == "meta":
            raise BackendError(
                "device 'meta' has shapes and no values: nothing can be read from it. Set the option device to cpu"
            )
        array: np.ndarray = (stored.float() if stored.dtype in NARROW_TYPES else stored).cpu().numpy()
        return array

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        stored = getattr(torch, STORED_TYPES.get(dtype.name) or dtype.numpy.name)
        return torch.zeros(shape, dtype=stored, device=self.device)

    def is_plain(self, tensor: Tensor) -> bool:
        return isinstance(tensor.storage, torch.Tensor)

    def free_bytes(self) -> int | None:
        memory = read_device_memory(self.device)
        return None if memory is None else memory[0]

    def total_bytes(self) -> int | None:
        memory = read_device_memory(self.device)
        return None if memory is None else memory[1]

    def measure_limits(self) -> Mapping[str, float]:
        try:
            return super().measure_limits()
        finally:
            release_cached_memory(self.device)  # torch keeps freed arrays, which others could not use

    def measure_stream(self) -> float:
        try:
            return super().measure_stream()
        finally:
            release_cached_memory(self.device)

    # ---- weights

    @enters_context
    def pack(self, weight: WeightArray) -> Tensor:
        """Store a matrix as int8 blocks, in its own 16-bit type, or in the type of activations. A vector is an ordinary
        tensor of float32."""
        form, shape = weight.format, weight.shape
        if len(shape) == 1:
            return self.tensor(weight.dequantize())
        stored: Any
        is_ordered = all(getattr(matrix, "order", None) is None for matrix in list_matrices(weight))
        if self.packs_weights and can_pack(form, shape) and is_ordered:
            stored = pack_blocks(form, shape, weight.blocks, self.device)
        else:
            stored = torch.from_numpy(weight.dequantize()).to(self._stored_type(form)).to(self.device)
        packed = TorchWeight(stored, self.activation_type, form.activation)
        return Tensor(form, Layout.contiguous(tuple(shape)), packed, self)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return prod(shape) * F32.nbytes
        if self.packs_weights and can_pack(format, shape):
            return packed_block_bytes(format, shape)
        return prod(shape) * self._stored_type(format).itemsize

    def _stored_type(self, format: Any) -> torch.dtype:
        """Return the type of a matrix that is not kept as int8 blocks."""
        if self.packs_weights and self.activation is F32:
            return {"F16": torch.float16, "BF16": torch.bfloat16}.get(format.name, torch.float32)
        return self.activation_type

    # ---- pages

    @enters_context
    def export_pages(self, cache: Tensor, pages: Sequence[int]) -> np.ndarray:
        return self.start_export_pages(cache, pages).result()

    @enters_context
    def start_export_pages(self, cache: Tensor, pages: Sequence[int]) -> Fetch:
        bits = cache_bits(cache.storage.values)
        return self._start_copy(bits.index_select(0, self.copy_in(np.array(pages, np.int64))))

    @enters_context
    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        bits = cache_bits(cache.storage.values)
        given = self.copy_in(canonical.view(np.int16) if canonical.dtype == np.uint16 else canonical)
        bits[self.copy_in(np.array(pages, np.int64))] = given.view(bits.dtype)

    @enters_context
    def copy_pages(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int]]) -> None:
        self._copy_rows([cache_bits(cache.storage.values) for cache in caches], copies)

    @enters_context
    def copy_states(self, caches: Sequence[tuple[Tensor, ...]], copies: Sequence[tuple[int, int]]) -> None:
        self._copy_rows([tensor.storage.values for cache in caches for tensor in cache], copies)

    def _copy_rows(self, arrays: Sequence[torch.Tensor], copies: Sequence[tuple[int, int]]) -> None:
        """Copy rows (source, target) in each array, all at once unless the order of the copies matters."""
        sources, targets = zip(*copies, strict=True) if copies else ((), ())
        is_ordered = len({*targets}) < len(targets) or not {*sources}.isdisjoint(targets)
        steps = [[copy] for copy in copies] if is_ordered else [copies] if copies else []
        for step in steps:
            source, target = (self.copy_in(np.array(rows, np.int64)) for rows in zip(*step, strict=True))
            for array in arrays:
                array.index_copy_(0, target, array.index_select(0, source))

    # ---- outputs of programs

    @enters_context
    def fetch_rows(self, handle: Handle, rows: Sequence[int]) -> np.ndarray:
        return self.fetch(handle.index_select(0, self.copy_in(np.array(rows, np.int64))))

    @enters_context
    def start_fetch(self, handle: Handle) -> Fetch:
        return self._start_copy(self.to_output(handle)) if self.resources is not None else Fetched(self.fetch(handle))

    def _start_copy(self, stored: torch.Tensor) -> Fetch:
        """Begin to copy a tensor to the host: bfloat16 and FP8 as their bits."""
        return Fetched(as_array(stored.cpu())) if self.resources is None else TorchFetch(self.resources, stored)

    # ---- captured graphs

    def fill(self, inputs: Mapping[str, torch.Tensor], arrays: Mapping[str, Handle]) -> None:
        """Begin to copy arrays into the inputs of a captured graph."""
        for name, array in arrays.items():
            if isinstance(array, torch.Tensor):
                inputs[name].copy_(array)
            elif self.resources is not None:
                self.resources.upload(array, inputs[name])
            else:
                inputs[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))

    # ---- running

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Begin a step. Set torch's number of threads, which is global to the process, and restore it afterwards.

        Raises MemoryShortage if there is too little memory for what is launched.
        """
        before, wanted = torch.get_num_threads(), self._num_threads()
        buckets = self.traits.input_buckets
        if before != wanted:
            torch.set_num_threads(wanted)
        try:
            with STEP.begin(buckets.row_block if buckets else 1, self.batch_invariant), torch.inference_mode():
                yield
        except RuntimeError as error:
            if (shortage := self.explain_shortage(error)) is None:
                raise
            raise shortage from error
        finally:
            if before != wanted:
                torch.set_num_threads(before)

    def explain_shortage(self, error: BaseException) -> MemoryShortage | None:
        """Return the MemoryShortage for an error of torch that says so, else None. Only some devices have a class of
        their own for it."""
        reason = str(error).partition("\n")[0][:200]
        is_shortage = isinstance(error, torch.OutOfMemoryError) or (
            type(error) is RuntimeError and any(phrase in reason for phrase in SHORTAGE_PHRASES)
        )
        if not is_shortage:
            return None
        return MemoryShortage(
            f"device {self.device}: {reason.rstrip('. ')}. Lower the option max_context, or use a smaller model."
        )

    def _num_threads(self) -> int:
        return self.threads if self.threads and self.device.type == "cpu" else torch.get_num_threads()

    def close(self) -> None:
        with self.context.current():
            if self.resources is not None and not self.context.closed:
                self.resources.close()
            super().close()

    def synchronize(self) -> None:
        if self.device.type not in ("cpu", "meta"):
            with self.context.current():  # of the current device: not every module's `synchronize` takes one
                torch.get_device_module(self.device).synchronize()


def _has_bf16(device: torch.device) -> bool:
    """Return whether a device multiplies bfloat16."""
    try:
        ones = torch.ones(8, 8, dtype=torch.bfloat16, device=device)
        return (ones @ ones).shape == ones.shape
    except Exception:  # each vendor's plug-in has errors of its own
        return False
