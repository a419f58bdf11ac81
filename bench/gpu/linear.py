"""Matrix multiplications ("products") with packed weights, in the shapes of a decode step and of a prompt.

Usage: PYTHONPATH=src python3 bench/gpu/linear.py [--shapes 8b,1b] [--formats bf16,fp8,q4_0,..] [--rows 1,2,8,64,4096]
       [--products qkv,o,gate_up,down,head] [--json]

For each shape, product and number of rows: bf16 first, then the other formats. Few rows are bound by reading: `share`
is the bytes of the packed weight a second, as a part of the card's read bandwidth in this run. From --compute-rows rows
on it is the operations a second, as a part of the bf16 matmul rate (for fp8 of the fp8 rate). `ratio` is how many times
faster than bf16. Several copies of a weight are used in turns, so that none is in a cache.

qkv       query, key and value, as one call
gate_up   both halves of a gated MLP with the activation between, as one call
"""

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import harness
import torch
from limits import Limits, load_limits, share_of
from random_models import FP8, MODEL_SHAPES, RandomBlocks, find_fp8_format, open_gpu_backend

from sporelm import ops
from sporelm.bench.model_shapes import ModelShape
from sporelm.quant import QuantFormat, format_of

FORMATS = ("bf16", FP8, "q4_0", "q4_k", "q6_k", "q8_0", "mxfp4")
ROWS = (1, 2, 4, 8, 16, 32, 64, 4096)
PRODUCTS = ("qkv", "o", "gate_up", "down", "head")
MAX_COPIES = 16
TINY_ROWS = (1, 4, 17)
TINY_FORMATS = ("bf16", FP8, "q4_0", "q8_0", "mxfp4")  # with blocks of 32 or 64


def product_shapes(shape: ModelShape, product: str) -> list[tuple[int, int]]:
    """Return the matrices [out, in] of a product."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    shapes = {
        "qkv": [(queries, shape.width), (keys, shape.width), (keys, shape.width)],
        "o": [(shape.width, queries)],
        "gate_up": [(shape.ffn, shape.width)] * 2,
        "down": [(shape.width, shape.ffn)],
        "head": [(shape.vocab, shape.width)],
    }
    return shapes[product]


def find_format(name: str, width: int) -> type[QuantFormat]:
    """Return the number format of a name of `--formats`, for rows of this many numbers."""
    return find_fp8_format(width) if name == FP8 else format_of(name)


class Products:
    """The products of one shape in one number format, on the device."""

    def __init__(self, backend: Any, blocks: RandomBlocks, shapes: Sequence[tuple[int, int]], form: Any) -> None:
        self.backend, self.shapes = backend, shapes
        self.nbytes = sum(backend.packed_bytes(form, shape) for shape in shapes)
        copies = min(MAX_COPIES, -(-harness.ROTATED_BYTES // self.nbytes)) if backend.device.type != "cpu" else 1
        stored = [blocks.tensor("weight", form, shape) for shape in shapes]
        self.weights = [
            tuple(backend.unwrap(backend.pack(each).storage) for each in stored) for _ in range(copies)
        ]  # fmt: skip

    def calls(self, product: str, rows: int) -> list[Callable[[], Any]]:
        """Return a call with each copy of the weights."""
        dtype = self.backend.activation_type
        x = torch.randn(rows, self.shapes[0][1], device=self.backend.device).to(dtype)
        op = {"qkv": ops.linear_group, "gate_up": ops.linear_silu_mul}.get(product, ops.linear)
        function = self.backend.find_function(op)
        if product == "qkv":
            return [lambda weights=weights: function(x, weights) for weights in self.weights]
        return [lambda weights=weights: function(x, *weights) for weights in self.weights]


def measure_product(
    args: argparse.Namespace,
    report: harness.Report,
    limits: Limits,
    backend: Any,
    blocks: RandomBlocks,
    shape_name: str,
    product: str,
) -> None:
    """Add the rows of one product, in all number formats."""
    timer = harness.Timer(args.device, args.repeat)
    shapes = product_shapes(MODEL_SHAPES[shape_name], product)
    operations = 2 * sum(out * width for out, width in shapes)
    baseline: dict[int, float] = {}
    for name in args.formats:
        with report.row(f"{shape_name} {product} {name} packed") as row:
            products = Products(backend, blocks, shapes, find_format(name, shapes[0][1]))
            row |= {"MB": products.nbytes / 1e6, "copies": len(products.weights)}
        if "error" in row:
            continue
        for rows in args.rows:
            with ExitStack() as stack, report.row(f"{shape_name} {product} {name} rows {rows}") as row:
                stack.enter_context(backend.context.current())
                stack.enter_context(backend.on_device())
                seconds = timer.time(products.calls(product, rows))
                baseline.setdefault(rows, seconds) if name == "bf16" else None
                gbytes, tflops = products.nbytes / seconds / 1e9, rows * operations / seconds / 1e12
                row |= {"us": seconds * 1e6, "GB/s": gbytes, "TFLOP/s": tflops}
                if rows < args.compute_rows:
                    row["share"] = share_of(gbytes * 1e9, limits.read_bytes_s)
                else:
                    rate = limits.fp8_flops if name == FP8 and limits.fp8_flops else limits.bf16_flops
                    row["share"] = share_of(tflops * 1e12, rate)
                if rows in baseline:
                    row["ratio"] = baseline[rows] / seconds
                if args.device != "cpu":
                    row["captured"] = timer.was_captured
        del products


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--shapes", default="8b,1b")
    parser.add_argument("--formats", help=f"{','.join(FORMATS)} by default")
    parser.add_argument("--products", default=",".join(PRODUCTS))
    parser.add_argument("--rows", default="")
    parser.add_argument("--compute-rows", type=int, default=256, help="rows from which the matmul rate is the limit")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32", "fp8"), help="of activations")
    parser.add_argument("--batch-invariant", action="store_true")
    args = parser.parse_args()
    harness.check_device(args)
    args.formats = (args.formats or ",".join(TINY_FORMATS if args.tiny else FORMATS)).split(",")
    default_rows = TINY_ROWS if args.tiny else ROWS
    args.rows = [int(each) for each in args.rows.split(",")] if args.rows else list(default_rows)
    shapes = ["mini"] if args.tiny else args.shapes.split(",")
    report = harness.Report("linear", args)
    limits = load_limits(args, report)
    backend = open_gpu_backend(args.device, args.dtype, batch_invariant=args.batch_invariant)
    for shape in shapes:
        blocks = RandomBlocks(MODEL_SHAPES[shape].width)
        for product in args.products.split(","):
            measure_product(args, report, limits, backend, blocks, shape, product)
    backend.close()
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
