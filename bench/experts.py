"""Experts of a mixture, measured: each time is set beside a dense product of the same size in the same run.

Usage: python bench/experts.py [--format Q4_K] [--experts 128] [--chosen 8] [--width 2048] [--ffn 768] [--layers 2]
                               [--tokens 1,8,512] [--threads N] [--repeat N] [--peer DIR] [--json]

A layer is what a model has between two norms: the router's product, `route`, gate and up with silu, down, and the
weighted sum; shapes are those of Qwen3-30B-A3B when none are named. Layers have weights of their own, so that a step
finds none of them in a cache. For each number of tokens a row tells:

tokens     of a step
layer_us   median time of one layer
tok_s      tokens a second of one such layer
stream     decoding: share of the machine's memory bandwidth that the chosen experts' weights take
compute    share of the machine's integer (or float) products
dense      time of a dense gated block that multiplies as many pairs of rows and matrices / time of the experts: with
           one token, matrices of `chosen` times the width; with more, the same number of rows for each of as many
           matrices as experts were chosen. 1 means that routing, order and scattered rows cost nothing
peer       with --peer, the folder of llama.cpp's libraries: their time for the products alone, the better of two ways
           to hold the weights / ours for the whole layer; `plain` and `repacked` are the two

With one thread times are the thread's own, so that a busy neighbour costs little; the limits are the best of three.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, thread_time
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import numpy as np  # noqa: E402
from peer_experts import VARIANTS, PeerLayers  # noqa: E402

from sporelm import ops  # noqa: E402
from sporelm.backends.cpu import CpuBackend  # noqa: E402
from sporelm.backends.cpu.tuning.peak_rates import measure_peak_rates as limits_of  # noqa: E402
from sporelm.backends.dot_rates import dot_rate_of  # noqa: E402
from sporelm.ops import Spec, Symbol, trace  # noqa: E402
from sporelm.plan import Plan  # noqa: E402
from sporelm.quant import FORMATS  # noqa: E402
from sporelm.quant.random_blocks import make_random_blocks  # noqa: E402
from sporelm.quant.stored_tensor import StoredTensor  # noqa: E402
from sporelm.tensor.dtype import F32  # noqa: E402


class Weights:
    """Random packed matrices of a format. Blocks repeat, which no kernel notices."""

    def __init__(self, backend: CpuBackend, form: str) -> None:
        self.backend = backend
        self.form = FORMATS[form]
        self.random = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        needed = self.form.tensor_nbytes(shape)
        count = min(1 << 14, needed // self.form.nbytes)
        whole = np.resize(self.blocks(count).reshape(-1), needed)
        return self.backend.pack(StoredTensor("experts", self.form, shape, whole))

    def blocks(self, count: int) -> np.ndarray:
        """Random blocks, uint8 [count, bytes of each]."""
        values = self.random.standard_normal((count, self.form.values), np.float32) * np.float32(0.05)
        if self.form.can_quantize:
            return self.form.quantize(values)
        return make_random_blocks(self.form, self.random.integers(0, 256, (count, self.form.nbytes), np.uint8), values)

    def router(self, experts: int, width: int) -> Any:
        values = self.random.standard_normal((experts, width), np.float32)
        return self.backend.pack(StoredTensor("router", FORMATS["F32"], values.shape, values.view(np.uint8)))


def layers_of(backend: CpuBackend, args: argparse.Namespace) -> Callable[[Any], dict[str, Any]]:
    """A function of rows [tokens, width]: all layers of experts, one after the other."""
    weights = Weights(backend, args.format)
    layers = []
    for _ in range(args.layers):
        experts = [weights(args.experts, args.ffn, args.width) for _ in range(2)]
        layers.append((weights.router(args.experts, args.width), *experts, weights(args.experts, args.width, args.ffn)))

    def run(x: Any) -> dict[str, Any]:
        y = x
        for router, gate, up, down in layers:
            share, ids = ops.route(ops.linear(x, router), k=args.chosen, renormalize=True)
            h = ops.silu_mul(ops.linear_experts(x, gate, ids), ops.linear_experts(x, up, ids))
            y = ops.add(y, ops.combine_experts(ops.linear_experts(h, down, ids), share))
        return {"y": y}

    return run


def dense_of(backend: CpuBackend, args: argparse.Namespace, blocks: int, ffn: int) -> Callable[[Any], dict[str, Any]]:
    """Build a function of rows [tokens, width]: the sum of `blocks` gated blocks, each with its own weights."""
    weights = Weights(backend, args.format)
    layers = [(weights(ffn, args.width), weights(ffn, args.width), weights(args.width, ffn)) for _ in range(blocks)]

    def run(x: Any) -> dict[str, Any]:
        y = x
        for gate, up, down in layers:
            y = ops.add(y, ops.linear(ops.silu_mul(ops.linear(x, gate), ops.linear(x, up)), down))
        return {"y": y}

    return run


class Step:
    """A planned step on random rows."""

    def __init__(self, backend: CpuBackend, function: Callable[[Any], dict[str, Any]], tokens: int, width: int) -> None:
        spec = Spec((Symbol("tokens", 512), width), F32)
        self.plan = Plan(trace(function, {"x": spec}), backend)
        self.random = np.random.default_rng(tokens)
        self.shape = (tokens, width)
        self.clock = thread_time if backend.thread_pool.threads == 1 else perf_counter
        self.seconds()

    def seconds(self) -> float:
        """Of one step, with rows that no step had before: they choose other experts, which no cache holds."""
        arrays = {"x": self.random.standard_normal(self.shape, np.float32)}
        start = self.clock()
        self.plan.run(arrays, {"tokens": self.shape[0]})
        return self.clock() - start


def measure(backend: CpuBackend, args: argparse.Namespace, tokens: int, limits: dict[str, float]) -> dict[str, Any]:
    """One row: experts and dense blocks take turns, so that a busy machine slows both."""
    pairs = tokens * args.chosen
    groups = args.experts * (1 - (1 - args.chosen / args.experts) ** tokens)  # that random choices touch
    experts = Step(backend, layers_of(backend, args), tokens, args.width)
    if tokens == 1:
        dense = Step(backend, dense_of(backend, args, args.layers, args.chosen * args.ffn), 1, args.width)
        scale = 1.0
    else:
        count = max(args.layers, min(16, round(groups)))
        dense = Step(backend, dense_of(backend, args, count, args.ffn), max(1, round(pairs / groups)), args.width)
        scale = args.layers * groups / count
    form = FORMATS[args.format]
    blocks = Weights(backend, args.format).blocks(1 << 12)
    peers = [PeerLayers(args.peer, way, form, blocks, args, tokens) for way in VARIANTS] if args.peer else []
    times = [(experts.seconds(), dense.seconds() * scale, *(p.seconds() for p in peers)) for _ in range(args.repeat)]
    layer = median(each[0] for each in times) / args.layers
    theirs = [median(each[2 + number] / each[0] for each in times) for number in range(len(peers))]
    for peer in peers:
        peer.close()
    values = 3 * args.ffn * args.width
    nbytes = groups * values / form.values * form.nbytes
    rate = limits["f32_ops_s"] if form.activation == "float" else dot_rate_of(limits, form)
    row = {
        "tokens": tokens,
        "layer_us": round(layer * 1e6, 1),
        "tok_s": round(tokens / layer, 1),
        "stream": round(nbytes / layer / limits["stream_bytes_s"], 3),
        "compute": round(2 * pairs * values / layer / rate, 3),
        "dense": round(median(each[1] / each[0] for each in times), 3),
    }
    if theirs:
        row["peer"] = round(min(theirs), 3)
        row |= {way: round(ratio, 3) for way, ratio in zip(VARIANTS, theirs, strict=True)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--format", default="Q4_K")
    for name, default in (("experts", 128), ("chosen", 8), ("width", 2048), ("ffn", 768), ("layers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--tokens", default="1,8,512")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    backend = CpuBackend(threads=args.threads)
    args.threads = backend.thread_pool.threads
    clock = thread_time if args.threads == 1 else perf_counter
    measured = [limits_of(backend.compiler, backend.thread_pool, clock) for _ in range(3)]
    limits = {name: max(each[name] for each in measured) for name in measured[0]}
    for tokens in map(int, args.tokens.split(",")):
        row = measure(backend, args, tokens, limits)
        print(json.dumps(row) if args.json else "  ".join(f"{name} {value}" for name, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
