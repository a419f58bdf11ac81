#!/usr/bin/env python3
"""Products of one core: the rate of each instruction with weights from the caches, and the rates of formats' kernels.

    SPORE_CPU_TARGET=avx2 python bench/cpu_products.py --format Q4_0,Q8_0,Q4_K,Q6_K --tokens 8,16,32,120
    python bench/cpu_products.py --stream --json

Rates are 10^9 multiply-adds a second of one thread, by its own time, the best of several runs; all alternate. A
kernel's weights come from the caches, unless --stream takes them from memory.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from sporelm.backends.cpu.formats import FORMATS, IntegerPanels
from sporelm.backends.cpu.jit import Builder, Compiler, Kernel, Val
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.many_token_linear import TOKENS_PER_BLOCK, count_panel_tiles, linear_many
from sporelm.backends.cpu.kernels.quantized_linear import LinearShape, linear_few
from sporelm.backends.cpu.targets.cpu_target import SIGNED
from sporelm.backends.cpu.targets.target_selection import select_target
from sporelm.backends.cpu.targets.tiles import TileSize
from sporelm.backends.cpu.tuning.peak_kernels import ROW_BYTES, WORDS, dots
from sporelm.backends.cpu.tuning.tuning_runs import (
    TURN_BYTES,
    TimedKernel,
    TuningMemory,
    linear_fields,
)

LEVELS = {"L1": 8 << 10, "L2": 192 << 10}  # bytes of weights
TILES: tuple[TileSize, ...] = ((1, 8), (2, 2), (2, 4), (4, 2))
CLASSES = {"4-bit": 15, "5-bit": 31, "6-bit": 63, "8-bit": SIGNED}
MAX_OUTPUTS = 1 << 15  # output columns of a run
TURN_VECTORS = 1 << 20  # vectors of weights that a run reads


class Measurement(NamedTuple):
    """A kernel to be timed, and its multiply-adds a run."""

    name: str
    tile: str
    where: str
    run: TimedKernel
    products: int


def list_instructions(compiler: Compiler, memory: TuningMemory) -> Iterator[Measurement]:
    """Yield the target's dot products by the bits of weights, products of pairs of 16 bits, and f32 multiply-adds."""
    target = compiler.target
    for panels, tokens in TILES:
        tile = panels, tokens
        kernels = [(f"dot, {bits}", dots(target, largest, tile), 4, WORDS) for bits, largest in CLASSES.items()]
        kernels.append(("pairs of 16 bits", dots(target, SIGNED, tile, is_wide=True), 2, 2 * WORDS))
        kernels.append(("f32", _float_products(target, tile), 1, WORDS))
        for name, kernel, depth, count in kernels:
            for where, nbytes in LEVELS.items():
                blocks = nbytes // (4 * target.lanes * panels * count)
                fields = {"source": memory.weights.address, "rows": memory.rounded.address, "blocks": blocks}
                items = max(1, TURN_VECTORS // (blocks * panels * count))
                products = items * blocks * panels * count * target.lanes * depth * tokens
                run = TimedKernel(compiler, kernel, fields, items, memory)
                yield Measurement(name, f"{panels}x{tokens}", where, run, products)


def _float_products(target: Any, tile: TileSize) -> Kernel:
    """Multiply and add f32 weights and rows, both from memory. An item is `blocks` of WORDS columns."""
    panels, tokens = tile

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        wide = 4 * k.lanes
        sums = [[k.zero(k.vf) for _ in range(panels)] for _ in range(tokens)]
        with k.range(first, last), k.range(f.blocks) as block:
            here = k.opaque(k.at(f.source, block * (WORDS * panels * wide)))
            rows = [k.opaque(k.at(f.rows, block * (4 * WORDS) + ROW_BYTES * t)) for t in range(tokens)]
            for number in range(WORDS):
                weights = [k.load(k.vf, here, (number * panels + p) * wide, align=wide) for p in range(panels)]
                for row, held in zip(rows, sums, strict=True):
                    x = k.broadcast(k.vf, row, 4 * number)
                    for weight, total in zip(weights, held, strict=True):
                        total.set(k.fma(x, weight, total.value))
        for t, held in enumerate(sums):
            for p, total in enumerate(held):
                k.store(total.value, scratch, (panels * t + p) * wide)

    return Kernel(f"limit_fma_{panels}x{tokens}", parse_fields("source:p rows:p blocks:i"), body)


def list_formats(
    compiler: Compiler, memory: TuningMemory, names: list[str], tokens: list[int], width: int, *, is_stream: bool
) -> Iterator[Measurement]:
    """Yield the few-token and the many-token kernel of each format."""
    target = compiler.target
    for name in names:
        kind: Any = FORMATS[name](target)
        shape, panel = LinearShape(kind), kind.panel_bytes(width)
        nbytes = TURN_BYTES if is_stream else LEVELS["L2"]
        panels = min(max(1, nbytes // panel // 24) * 24, MAX_OUTPUTS // target.lanes // 24 * 24)  # a multiple of tiles'
        fields = linear_fields(kind, width, panels, memory)
        few, many = linear_few(target, shape), linear_many(target, shape)
        tiles = count_panel_tiles(shape, target, [panels])
        for count in tokens:
            for kernel, items in ((few, panels), (many, tiles * -(-count // TOKENS_PER_BLOCK))):
                run = TimedKernel(
                    compiler, kernel, fields | {"tokens": count}, items, memory, 1, panels * panel * is_stream
                )
                tile = target.tiles.few_of(kind) if kernel is few else target.tiles.many_of(kind)
                products = panels * target.lanes * width * count
                label = f"{name} {'few' if kernel is few else 'many'}"
                yield Measurement(label, "x".join(map(str, tile)), f"{count} tokens", run, products)


def measure(measurements: list[Measurement], repeat: int) -> list[dict[str, Any]]:
    """Return rows of rates, the best of `repeat` alternating runs."""
    seconds = [
        min(each) for each in zip(*([m.run.seconds(n) for m in measurements] for n in range(repeat)), strict=True)
    ]
    return [
        {"name": m.name, "tile": m.tile, "where": m.where, "products_s": m.products / time}
        for m, time in zip(measurements, seconds, strict=True)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", default="Q4_0,Q4_1,Q4_K,Q5_K,Q6_K,Q8_0")
    parser.add_argument("--tokens", default="8,16,32,120")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--stream", action="store_true", help="take the kernels' weights from memory")
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [name for name in args.format.split(",") if issubclass(FORMATS[name], IntegerPanels)]
    tokens = [int(number) for number in args.tokens.split(",")]
    compiler, memory = Compiler(select_target()), TuningMemory(max(tokens), max(args.width, MAX_OUTPUTS))
    instructions = list(list_instructions(compiler, memory))
    formats = list(list_formats(compiler, memory, names, tokens, args.width, is_stream=args.stream))
    rows = measure(instructions + formats, args.repeat)
    if args.json:
        print(json.dumps({"target": compiler.target.name, "rows": rows}))
        return
    for row in rows:
        print(f"{row['name']:18} {row['tile']:6} {row['where']:12} {row['products_s'] / 1e9:8.1f}")


if __name__ == "__main__":
    main()
