"""Measurement of a device's peak rates: reading memory, and the product of many tokens."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyopencl as cl

from sporelm import ops
from sporelm.backends.opencl.kernel_program import LaunchVariant, kernel_program, launch_variant
from sporelm.backends.opencl.lowering.quantized_linear import list_half_snippets, make_tile_options
from sporelm.quant import Q4_0
from sporelm.quant.stored_tensor import StoredTensor

if TYPE_CHECKING:
    from sporelm.backends.opencl.opencl_backend import OpenClBackend

STREAM_BYTES = 64 << 20
VECTOR_BYTES = 64
VECTORS_PER_ITEM = 256
TOKENS, WIDTH, ROWS = 512, 1024, 1024  # of the product
TOKEN_ROWS, TOKEN_FORMAT = 16384, Q4_0  # of the product of one token
REPEATS = 8


def measure_peak_rates(backend: "OpenClBackend") -> Mapping[str, float]:
    """Return stream_bytes_s, stream_median_bytes_s, f32_ops_s and int8_dot_ops_s, each the best of several times, and
    token_bytes_s, the median of a product of one token.

    Integers are multiplied as floats, so their rate is the same.
    """
    reads, products = _time_reads(backend), _time_products(backend)
    ops = 2 * TOKENS * WIDTH * ROWS / min(products)
    return {
        "stream_bytes_s": STREAM_BYTES / min(reads),
        "stream_median_bytes_s": STREAM_BYTES / median(reads),
        "int8_dot_ops_s": ops,
        "f32_ops_s": ops,
        "token_bytes_s": _token_weight_bytes() / median(_time_token_product(backend)),
    }


def measure_stream(backend: "OpenClBackend") -> float:
    """Return the current read bandwidth of the device in bytes per second: the median of several reads."""
    return STREAM_BYTES / median(_time_reads(backend))


def time_repeats(backend: "OpenClBackend", launch: Callable[[], Any], repeats: int = REPEATS) -> list[float]:
    """Return the seconds of each of several launches, after an untimed warm-up run."""
    seconds = []
    for number in range(repeats + 1):
        backend.queue.finish()
        began = perf_counter()
        launch()
        backend.queue.finish()
        if number:
            seconds.append(perf_counter() - began)
    return seconds


def _time_reads(backend: "OpenClBackend") -> list[float]:
    items = STREAM_BYTES // (VECTOR_BYTES * VECTORS_PER_ITEM)
    source = backend.allocate_buffer(STREAM_BYTES, "a measurement")
    cl.enqueue_fill_buffer(backend.queue, source, np.zeros(1, np.uint8), 0, STREAM_BYTES)
    options = {"VEC": 4, "LOCAL": 1, "COUNT": VECTORS_PER_ITEM, "PER_ITEM": int(backend.device.kind == "cpu")}
    program = kernel_program("read_bandwidth", options)
    kernel = backend.compiler.kernel(program, "sum_stream")
    target = backend.allocate_buffer(items * 4, "a measurement")  # a kernel does not keep its arguments alive
    kernel.set_args(source, target, np.int32(items))
    group = backend.tuning.elements_group if backend.device.kind != "cpu" else 1
    return _time_kernel(backend, launch_variant(program, "sum_stream", (items,), (group,)), kernel, (items,))


def _time_kernel(backend: "OpenClBackend", variant: LaunchVariant, kernel: Any, sizes: tuple[int, ...]) -> list[float]:
    """Return the seconds of launches of a kernel whose arguments are set."""

    def launch() -> None:
        cl.enqueue_nd_range_kernel(backend.queue, kernel, sizes, variant.group)

    backend.compiler.compile_kernel(backend.queue, variant, kernel)
    backend.compiler.save_binaries()
    return time_repeats(backend, launch)


def _token_weight_bytes() -> int:
    return TOKEN_ROWS * WIDTH // TOKEN_FORMAT.values * TOKEN_FORMAT.nbytes


def _time_token_product(backend: "OpenClBackend") -> list[float]:
    """Return the seconds of products of one token with a quantized matrix, from launch to result."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 60, (TOKEN_ROWS * WIDTH // TOKEN_FORMAT.values, TOKEN_FORMAT.nbytes), np.uint8)
    weight = backend.pack(StoredTensor("weight", TOKEN_FORMAT, (TOKEN_ROWS, WIDTH), blocks))
    x = backend.tensor(random.standard_normal((1, WIDTH), np.float32))
    prepared = backend.prepare_call(ops.linear, (x, weight), {})
    assert prepared is not None
    program = prepared.program
    return time_repeats(backend, lambda: program.run({}, {}))


def _time_products(backend: "OpenClBackend") -> list[float]:
    tuning, panel = backend.tuning, 16 * backend.tuning.tile_vectors
    number_bytes = backend.activation.nbytes
    x = backend.allocate_buffer(TOKENS * WIDTH * number_bytes, "a measurement")
    panels = backend.allocate_buffer(-(-ROWS // panel) * panel * WIDTH * number_bytes, "a measurement")
    y = backend.allocate_buffer(TOKENS * ROWS * number_bytes, "a measurement")
    for buffer in (x, panels):
        cl.enqueue_fill_buffer(backend.queue, buffer, np.zeros(1, np.uint8), 0, buffer.size)
    shared = {"VEC": tuning.vector, "LOCAL": 1, "NARROW": number_bytes == 2}
    snippets = list_half_snippets(tuning, backend.half_arithmetic)
    program = kernel_program("linear_many", shared | make_tile_options(tuning, backend.half_arithmetic), snippets)
    kernel = backend.compiler.kernel(program, "multiply_tiles")
    numbers = (TOKENS, WIDTH, WIDTH, 0, ROWS, ROWS)
    kernel.set_args(x, panels, None, y, *map(np.int32, numbers))
    group_panels, group_tokens = tuning.tile_group
    sizes = [(-(-TOKENS // tuning.tile_tokens), group_tokens), (-(-ROWS // panel), group_panels)]
    work = tuple(-(-size // group) * group for size, group in sizes)
    variant = launch_variant(program, "multiply_tiles", work, (group_tokens, group_panels))
    return _time_kernel(backend, variant, kernel, work)
