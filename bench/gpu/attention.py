"""Attention over a paged KV cache, in the shapes of a decode step and of a prompt (prefill).

Usage: PYTHONPATH=src python3 bench/gpu/attention.py [--contexts 1024,8192,32768] [--batches 1,16] [--kv f16,bf16,fp8]
       [--prompt 4096] [--heads 32/8x128] [--json]

decode    one row of each sequence, all with the same context. `share` is the bytes of keys and values a second, as a
          part of the card's read bandwidth in this run
prompt    all rows of one prompt, in blocks as the engine cuts them. `share` is the operations under the
          causal mask, a second, as a part of the bf16 matmul rate

Pages are scattered. Several KV caches are used in turns, so that none is in the card's L2 cache.
"""

import argparse
from collections.abc import Callable
from math import sqrt
from typing import Any

import harness
import numpy as np
import torch
from limits import Limits, load_limits, share_of
from random_models import open_gpu_backend

from sporelm import ops
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.ops.paged_attention import PAGE

MAX_LAYERS = 64


class Heads:
    """Query heads, key heads and their size, from text such as 32/8x128."""

    def __init__(self, text: str) -> None:
        counts, _, size = text.partition("x")
        queries, _, keys = counts.partition("/")
        self.queries, self.keys, self.size = int(queries), int(keys), int(size)


class Caches:
    """Filled caches of as many layers as are used in turns, each with scattered pages of all sequences."""

    def __init__(self, backend: Any, heads: Heads, kv: str, context: int, batch: int) -> None:
        self.columns = -(-context // PAGE)
        count = self.columns * batch
        kept, dtype = (heads.keys, heads.size), KV_TYPES[kv]
        self.layer_bytes = count * backend.page_bytes(kept, dtype)
        layers = min(MAX_LAYERS, -(-harness.ROTATED_BYTES // self.layer_bytes)) if backend.device.type != "cpu" else 1
        self.tensors = backend.allocate_pages(count, [kept] * layers, dtype)
        self.values = [backend.unwrap(each.storage) for each in self.tensors]
        for each in self.values:
            _fill(each)
        order = np.random.default_rng(0).permutation(count).astype(np.int32)
        self.pages = torch.from_numpy(order.reshape(batch, self.columns)).to(backend.device)


def _fill(cache: Any) -> None:
    """Fill a cache with normal random numbers, page by page to save memory."""
    if not isinstance(cache, torch.Tensor):  # Q8_0 blocks: any bytes will do, but for the scales
        cache.blocks.fill_(1)
        return
    for page in cache.split(256):
        page.copy_(torch.randn(page.shape, device=page.device, dtype=torch.float32).to(page.dtype))


def make_decode(backend: Any, caches: Caches, heads: Heads, context: int, batch: int) -> list[Callable[[], Any]]:
    """Return a call of attention for one row of each sequence, on each layer."""
    q = torch.randn(batch, heads.queries * heads.size, device=backend.device).to(backend.activation_type)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=backend.device)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=backend.device)
    return _calls(backend, caches, heads, q, starts, lengths, caches.pages)


def make_prompt(backend: Any, caches: Caches, heads: Heads, tokens: int) -> list[Callable[[], Any]]:
    """Return a call of attention for all rows of a prompt, on each layer: blocks with the same pages (ADR 0045)."""
    block = backend.traits.input_buckets.row_block
    ends = torch.arange(block, tokens + 1, block, dtype=torch.int32, device=backend.device)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends])
    q = torch.randn(tokens, heads.queries * heads.size, device=backend.device).to(backend.activation_type)
    pages = caches.pages.expand(len(ends), -1).contiguous()
    return _calls(backend, caches, heads, q, starts, ends, pages)


def _calls(
    backend: Any, caches: Caches, heads: Heads, q: Any, starts: Any, lengths: Any, pages: Any
) -> list[Callable[[], Any]]:
    function, scale = backend.find_function(ops.attention), 1 / sqrt(heads.size)
    return [lambda cache=cache: function(q, cache, starts, lengths, pages, scale=scale) for cache in caches.values]


def measure_decode(
    args: argparse.Namespace, report: harness.Report, limits: Limits, backend: Any, kv: str, context: int, batch: int
) -> None:
    """Add the row of a decode step."""
    timer = harness.Timer(args.device, args.repeat)
    with report.row(f"decode {kv} context {context} batch {batch}") as row:
        caches = Caches(backend, args.heads, kv, context, batch)
        with backend.context.current(), backend.on_device():
            seconds = timer.time(make_decode(backend, caches, args.heads, context, batch))
        nbytes = caches.layer_bytes * context / (caches.columns * PAGE)
        row |= {"us": seconds * 1e6, "GB/s": nbytes / seconds / 1e9, "layers": len(caches.values)}
        row["share"] = share_of(nbytes / seconds, limits.read_bytes_s)
        if args.device != "cpu":
            row["captured"] = timer.was_captured
        backend.free_pages(caches.tensors)


def measure_prompt(
    args: argparse.Namespace, report: harness.Report, limits: Limits, backend: Any, kv: str, tokens: int
) -> None:
    """Add the row of a prompt."""
    timer = harness.Timer(args.device, args.repeat)
    with report.row(f"prompt {kv} tokens {tokens}") as row:
        caches = Caches(backend, args.heads, kv, tokens, 1)
        with backend.context.current(), backend.on_device():
            seconds = timer.time(make_prompt(backend, caches, args.heads, tokens))
        operations = 4 * args.heads.queries * args.heads.size * tokens * (tokens + 1) / 2
        row |= {"us": seconds * 1e6, "TFLOP/s": operations / seconds / 1e12}
        row["share"] = share_of(operations / seconds, limits.bf16_flops)
        if args.device != "cpu":
            row["captured"] = timer.was_captured
        backend.free_pages(caches.tensors)


def main() -> int:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--contexts", default="")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--kv", default="f16,bf16,fp8")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens; 0: no prompt")
    parser.add_argument("--heads", default="", help="query heads / key heads x size of a head")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16", "f32"), help="of activations")
    parser.add_argument("--batch-invariant", action="store_true")
    args = parser.parse_args()
    harness.check_device(args)
    args.heads = Heads(args.heads or ("4/2x32" if args.tiny else "32/8x128"))
    contexts = [int(each) for each in (args.contexts or ("70" if args.tiny else "1024,8192,32768")).split(",")]
    batches = [1, 2] if args.tiny else [int(each) for each in args.batches.split(",")]
    report = harness.Report("attention", args)
    limits = load_limits(args, report)
    backend = open_gpu_backend(args.device, args.dtype, batch_invariant=args.batch_invariant)
    for kv in args.kv.split(","):
        for context in reversed(contexts):  # the longest first: a limit of time takes the least important
            for batch in batches:
                measure_decode(args, report, limits, backend, kv, context, batch)
        if args.prompt:
            measure_prompt(args, report, limits, backend, kv, 128 if args.tiny else args.prompt)
    backend.close()
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
