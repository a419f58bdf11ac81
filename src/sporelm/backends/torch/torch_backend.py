"""The torch back-end: memory, weights and pages on one torch.device. Op functions are in the other files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from sporelm.backends.function_backend import FunctionBackend
from sporelm.backends.protocol import Missing, Ready, WeightArray
from sporelm.backends.torch.op_functions import op_functions
from sporelm.backends.torch.quantized_linear import TorchWeight
from sporelm.tensor.dtype import BF16, FP8, DType
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor

TYPES = {BF16: torch.bfloat16, FP8: torch.float8_e4m3fn}  # of pages, whose numbers numpy sees as bits
BITS = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}


class TorchBackend(FunctionBackend):
    """Everything lies on `device`, any that torch knows by name: "cpu", "cuda", "cuda:1", or a vendor's own.

    A row's result may change in its last bits with the number of rows beside it: torch's products choose their order of
    summation by shape.
    """

    name = "torch"
    rules = ("quantize_rows",)  # rows that several products share are rounded once
    functions: Mapping[str, Callable[..., Any]] = op_functions()

    def __init__(self, threads: int | None = None, device: str = "cpu") -> None:
        super().__init__()
        self.threads, self.requested_device = threads, device

    def probe(self) -> Ready | Missing:
        try:
            found = torch.zeros(1, device=self.requested_device)
            found.cpu()  # "meta" knows shapes only
            self.device = found.device
        except Exception as error:  # each vendor's plug-in has errors of its own
            reason = str(error).partition("\n")[0][:200]
            return Missing(
                f"torch {torch.__version__} has no device {self.requested_device!r} here: {reason}; try --device cpu"
            )
        return Ready({"torch": torch.__version__, "device": str(self.device), "threads": str(self._num_threads())})

    # ---- memory

    def copy_in(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(array, order="C")).to(self.device)

    def copy_out(self, stored: torch.Tensor) -> np.ndarray:
        bits = BITS.get(stored.dtype)
        return (stored if bits is None else stored.view(bits)).cpu().numpy()

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> torch.Tensor:
        kind = TYPES.get(dtype) or getattr(torch, dtype.numpy.name)
        return torch.zeros(shape, dtype=kind, device=self.device)

    def import_pages(self, cache: Tensor, pages: Sequence[int], canonical: np.ndarray) -> None:
        held = cache.storage.canonical
        held[list(pages)] = self.copy_in(canonical).view(held.dtype)

    def is_plain(self, tensor: Tensor) -> bool:
        return isinstance(tensor.storage, torch.Tensor)

    def pack(self, weight: WeightArray) -> Tensor:
        """Dequantize to float32. A vector is an ordinary tensor."""
        values = weight.dequantize()
        if values.ndim == 1:
            return self.tensor(values)
        stored = TorchWeight(torch.from_numpy(values).to(self.device), weight.format.activation)
        return Tensor(weight.format, Layout.contiguous(values.shape), stored, self)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape)) * 4

    def free_bytes(self) -> int | None:
        told = getattr(torch.get_device_module(self.device), "mem_get_info", None)
        return int(told(self.device)[0]) if told else None

    # ---- running

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Set torch's number of threads, which is global to the process, and restore it afterwards."""
        before, wanted = torch.get_num_threads(), self._num_threads()
        if before == wanted:
            yield
            return
        torch.set_num_threads(wanted)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _num_threads(self) -> int:
        return self.threads if self.threads and self.device.type == "cpu" else torch.get_num_threads()

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize(self.device)
