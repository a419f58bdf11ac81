"""Lowering of products with packed weights."""

from typing import Any

from sporelm import ops
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.kernels import many_token_linear, quantized_linear
from sporelm.backends.cpu.lowering.emitter import Cell, Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.backends.cpu.lowering.packed_weight import packed_weight
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of
from sporelm.tensor.dtype import F32

# Weights that a thread claims at once for one token: others wait for the last chunk.
CHUNK_BYTES = 128 << 10


@lowers(ops.linear)
def _lower_linear(emitter: Emitter, call: Call) -> None:
    x, weight, *bias = call.args
    _emit_product(emitter, x, [weight], [b for b in bias if b is not None], call.results)


@lowers(ops.linear_group)
def _lower_linear_group(emitter: Emitter, call: Call) -> None:
    x, weights, *biases = call.args
    given = list(biases[0]) if biases else []
    _emit_product(emitter, x, list(weights), given if any(b is not None for b in given) else [], call.results)


@lowers(ops.linear_silu_mul, ops.linear_activate_mul)
def _lower_gated_linear(emitter: Emitter, call: Call) -> None:
    x, gate, up = call.args
    _emit_product(emitter, x, [gate, up], [], call.results, gate=call.options.get("kind", "silu"))


def _emit_product(
    emitter: Emitter, x: Any, weights: list[Any], biases: list[Any], outs: Any, *, gate: str = ""
) -> None:
    """Lower a product to at most three kernels; the number of rows of a step selects one."""
    packed = [packed_weight(weight) for weight in weights]
    tokens, width = spec_of(x).shape
    target, kind = emitter.context.target, packed[0].kind
    if spec_of(x).dtype.name != (kind.activation if isinstance(kind, IntegerPanels) else F32.name):
        raise BackendError(
            f"weights in {kind.name} need activations rounded to int8 (got {spec_of(x)}). Apply the rule quantize_rows."
        )
    gated, shape = bool(gate), quantized_linear.LinearShape(kind, len(weights), bool(biases), gate)
    cell = extent_cell(tokens)
    fields: dict[str, Any] = {
        "x": emitter.address(x),
        "x_stride": row_stride(x),
        "width": require_fixed(width),
        "tokens": cell,
    }
    fields["panel_bytes"] = packed[0].panel_bytes
    for s, weight in enumerate(packed):
        out = outs[0] if gated else outs[s]
        fields |= {f"weight{s}": weight.address, f"out{s}": emitter.address(out), f"panels{s}": weight.panels}
        fields[f"out_stride{s}"] = row_stride(out)
        if biases:
            none = biases[s] is None  # in a group, a product without a bias gets zeros
            fields[f"bias{s}"] = (
                emitter.context.reserve(4 * target.lanes * weight.panels) if none else emitter.address(biases[s])
            )
    panels = [weight.panels for weight in packed]
    single = Cell("1", 1)
    total = panels[0] if gated else sum(panels)
    grain = max(1, total // (4 * emitter.context.threads))
    item_bytes = packed[0].panel_bytes * (2 if gated else 1)
    together, _ = target.tiles.few_of(kind)  # a chunk of fewer panels would compute its last one again
    fine = max(together, min(grain, CHUNK_BYTES // item_bytes) // together * together)
    few, high = target.tiles.few_tokens_of(kind), max_extent(tokens)
    one, several, many = (
        quantized_linear.linear_one(target, shape),
        quantized_linear.linear_few(target, shape, require_fixed(width)),
        many_token_linear.linear_many(target, shape),
    )
    if high == 1 or cell.name == "rows":
        emitter.emit(one, fields, single, factor=total, grain=fine, guard=(cell, 0, 1))
    if high > 1 and (high <= few or cell.constant is None):  # a known number of rows needs one kernel
        least = 2 if cell.name == "rows" else 1
        emitter.emit(several, fields, single, factor=total, grain=grain, guard=(cell, least, min(few, high)))
    if high > few:
        tiles, blocks = (
            many_token_linear.count_panel_tiles(shape, target, panels),
            Cell(f"{cell.name} blocks", cell.constant),
        )
        emitter.emit(many, fields, blocks, factor=tiles, guard=(cell, few + 1, high))
