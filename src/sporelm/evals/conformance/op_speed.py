"""The speed of products on a back-end, beside the rates that its device reaches."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.backends.dot_rates import dot_rate_of
from sporelm.backends.protocol import Backend
from sporelm.evals.conformance.random_weights import blocks_of
from sporelm.ops import Spec, trace
from sporelm.plan import Plan
from sporelm.quant import FORMATS
from sporelm.quant.stored_tensor import StoredTensor
from sporelm.tensor.dtype import F32

FORMAT_NAMES = ("F16", "Q8_0", "Q4_0")
SIDE = 2048  # of the square matrices
STREAM_BYTES = 1 << 28  # of different matrices that one row is multiplied by, so that no cache holds them all
MANY_ROWS, MANY_COUNT = 256, 4  # rows and matrices where arithmetic is the limit
REPEATS = 7


def time_products(backend: Backend) -> Iterator[dict[str, Any]]:
    """Yield a row for each number format and number of rows: the median seconds of a product, the bytes of the weight
    and operations a second, and the share of the limit that counts: reading the weight, or arithmetic."""
    limits = backend.measure_limits()
    random = np.random.default_rng(0)
    values = random.standard_normal((SIDE, SIDE), np.float32)
    for name in FORMAT_NAMES:
        form = FORMATS[name]
        blocks = np.ascontiguousarray(blocks_of(form, values)).view(np.uint8).reshape(-1)
        nbytes = backend.packed_bytes(form, (SIDE, SIDE))
        count = max(MANY_COUNT, -(-STREAM_BYTES // nbytes))
        weights = [backend.pack(StoredTensor("weight", form, (SIDE, SIDE), blocks)) for _ in range(count)]
        for rows, used in ((1, count), (MANY_ROWS, MANY_COUNT)):

            def multiply(x: Any, weights: Any = weights[:used]) -> dict[str, Any]:
                for weight in weights:
                    x = ops.linear(x, weight)
                return {"y": x}

            plan = Plan(trace(multiply, {"x": Spec((rows, SIDE), F32)}), backend)
            arrays = {"x": random.standard_normal((rows, SIDE), np.float32) / np.float32(SIDE)}
            _time(plan, arrays)  # compiles
            seconds = median(_time(plan, arrays) for _ in range(REPEATS)) / used
            plan.close()
            operations = 2 * rows * SIDE * SIDE
            is_stream = rows == 1
            reached = nbytes / seconds if is_stream else operations / seconds
            is_integer = form.activation != "float"
            peak = dot_rate_of(limits, form) if is_integer else limits["f32_ops_s"]
            limit = limits["stream_bytes_s"] if is_stream else peak
            yield {
                "format": name,
                "rows": rows,
                "seconds": seconds,
                "bytes_s": nbytes / seconds,
                "ops_s": operations / seconds,
                "limit": "stream" if is_stream else "compute",
                "share": reached / limit,
            }


def _time(plan: Plan, arrays: dict[str, np.ndarray]) -> float:
    began = perf_counter()
    plan.run(arrays, {})
    return perf_counter() - began
