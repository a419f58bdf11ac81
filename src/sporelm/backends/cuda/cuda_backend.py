"""The back-end for NVIDIA GPUs."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
import triton

from sporelm.backends.cuda.cuda_graphs import CudaGraphDevice
from sporelm.backends.cuda.cuda_weight import FLOAT_TYPES, CudaWeight, has_planes, pack_floats, pack_planes, plane_bytes
from sporelm.backends.cuda.numbers import IS_INTERPRETED
from sporelm.backends.cuda.op_kernels import list_plain_ops, op_functions, own_functions
from sporelm.backends.device_context import enters_context
from sporelm.backends.protocol import MemoryPlanner, Missing, Program, Ready, WeightArray
from sporelm.backends.stacked_experts import list_matrices
from sporelm.backends.torch import TorchBackend
from sporelm.backends.torch.captured_graphs import GraphDevice, GraphProgram
from sporelm.ops import Graph, Op
from sporelm.quant import F8_E4M3_128, F8_E4M3_128_W8A8
from sporelm.tensor.dtype import F32
from sporelm.tensor.layout import Layout
from sporelm.tensor.tensor import Tensor as ArrayTensor

MIN_CAPABILITY = (8, 0)  # of a GPU: bfloat16 tensor cores, and asynchronous copies
MIN_FP8_CAPABILITY = (8, 9)  # FP8 tensor cores
FP8_DTYPE = "fp8"  # of --dtype


class CudaBackend(TorchBackend):
    """The torch back-end with Triton kernels in the place of torch's functions.

    Options are those of `TorchBackend`. With the dtype "fp8", activations are bf16. FP8 weights with one scale per 128
    values run as W8A8: their input rows are rounded to FP8 too, and multiplied on FP8 tensor cores.

    Under Triton's interpreter (TRITON_INTERPRET=1) everything runs on the CPU, slowly, for tests.
    """

    name = "cuda"
    remedy = "set the option backend to cpu"
    dtype_choices = (*TorchBackend.dtype_choices, FP8_DTYPE)
    functions: Mapping[str, Callable[..., Any]] = op_functions()
    padded_ops = (
        *TorchBackend.padded_ops,
        *("causal_conv1d", "gated_delta_rule", "ssm_scan", "selective_scan", "gated_lru"),
        *("lightning_attention", "gated_linear_attention", "wkv6", "wkv7"),
    )

    def __init__(
        self,
        threads: int | None = None,
        device: str = "cpu",
        dtype: str = "auto",
        weights: str = "auto",
        batch_invariant: bool = False,
    ) -> None:
        """Open a GPU. "cpu", the default of `--device`, means the first GPU."""
        if device == "cpu" and not IS_INTERPRETED:
            device = "cuda"
        self.graph_device: GraphDevice | None = None  # of captured launches; None: programs run call by call
        self.has_fp8_activations = dtype == FP8_DTYPE
        super().__init__(threads, device, dtype, weights, batch_invariant)

    def probe(self) -> Ready | Missing:
        if not IS_INTERPRETED and not self.requested_device.startswith("cuda"):
            return Missing(f"not an NVIDIA GPU (got device {self.requested_device!r}). Set the option device to cuda")
        state = super().probe()
        if isinstance(state, Missing):
            return state
        details = dict(state.details) | {"triton": triton.__version__, "plain torch": ", ".join(list_plain_ops())}
        if IS_INTERPRETED:
            return Ready(details | {"device": "Triton's interpreter, for tests"})
        capability = torch.cuda.get_device_capability(self.device)
        if capability < MIN_CAPABILITY:
            found, needed = (".".join(map(str, each)) for each in (capability, MIN_CAPABILITY))
            name = torch.cuda.get_device_name(self.device)
            return Missing(
                f"{name} is too old: compute capability {found}, kernels need {needed}. Set the option backend"
                f" to torch and the option device to {self.device}"
            )
        if self.has_fp8_activations and capability < MIN_FP8_CAPABILITY:
            found, needed = (".".join(map(str, each)) for each in (capability, MIN_FP8_CAPABILITY))
            return Missing(
                f"dtype fp8: {torch.cuda.get_device_name(self.device)} has no FP8 tensor cores (got compute capability "
                f"{found}; needs {needed} or later). Set the option dtype to bf16"
            )
        return Ready(details | {"gpu": torch.cuda.get_device_name(self.device)})

    def takes_narrow(self, op: Op) -> bool:
        return op.name in own_functions() or super().takes_narrow(op)

    # ---- weights

    @enters_context
    def pack(self, weight: WeightArray) -> ArrayTensor:
        """Store a matrix as planes if its format has planes, else as floats of its own type or that of activations. A
        vector is an ordinary tensor of float32.

        Planes keep columns in the order of their groups: the columns of x are sorted likewise. Experts with
        other orders are stored as floats.
        """
        form, shape = weight.format, weight.shape
        if len(shape) == 1:
            return self.tensor(weight.dequantize())
        orders: list[Any] = [getattr(matrix, "order", None) for matrix in list_matrices(weight)]
        is_ordered = all(each is None for each in orders)
        order = None
        stored: Any
        if self.packs_weights and has_planes(form, shape) and (is_ordered or len(shape) == 2):
            stored = pack_planes(weight, self.device)
            if self.has_fp8_activations and form is F8_E4M3_128 and is_ordered and len(shape) == 2:
                form = F8_E4M3_128_W8A8
            if not is_ordered:
                order = torch.from_numpy(orders[0].astype(np.int64)).to(self.device)
        elif form.name in FLOAT_TYPES and is_ordered:
            stored = pack_floats(weight, self._stored_type(form), self.device)
        else:
            stored = torch.from_numpy(weight.dequantize()).to(self._stored_type(form)).to(self.device)
        packed = CudaWeight(stored, tuple(shape), self.activation_type, form.activation, order)
        return ArrayTensor(form, Layout.contiguous(tuple(shape)), packed, self)

    def packed_bytes(self, format: Any, shape: tuple[int, ...]) -> int:
        if len(shape) == 1:
            return prod(shape) * F32.nbytes
        if self.packs_weights and has_planes(format, shape):
            return plane_bytes(format, shape)
        return prod(shape) * self._stored_type(format).itemsize

    # ---- captured graphs

    def use_device(self, device: torch.device) -> None:
        super().use_device(device)
        self.packs_weights = self._requested_weights != "dense"  # under the interpreter too
        self.graph_device = CudaGraphDevice() if device.type == "cuda" else None

    @enters_context
    def program(self, graph: Graph, bucket: str, plan_memory: MemoryPlanner) -> Program:
        if self.graph_device is None or self.traits.input_buckets is None:
            return super().program(graph, bucket, plan_memory)
        return GraphProgram(graph, self, self.graph_device)
