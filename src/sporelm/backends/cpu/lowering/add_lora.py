"""Lowering of LoRA."""

from sporelm import ops
from sporelm.backends.cpu.kernels import add_lora
from sporelm.backends.cpu.lowering.emitter import Emitter, extent_cell, max_extent, row_stride
from sporelm.backends.cpu.lowering.op_lowering import lowers
from sporelm.ops import Call
from sporelm.ops.spec import require_fixed, spec_of


@lowers(ops.add_lora)
def _lower_add_lora(emitter: Emitter, call: Call) -> None:
    """Compute x @ a into memory that all these calls share, then add the product with b to y."""
    y, x, which, downs, ups = call.args
    (tokens, out), (_, width) = spec_of(y).shape, spec_of(x).shape
    words, most_rank = list[int](), 1
    if isinstance(downs, tuple):
        for down, up in zip(downs, ups, strict=True):
            rank = 0 if down is None else require_fixed(spec_of(down).shape[0])
            words += [emitter.address(down), emitter.address(up), rank] if rank else [0, 0, 0]
            most_rank = max(most_rank, rank)
    else:
        slots, most_rank = map(require_fixed, spec_of(downs).shape[:2])
        for row in range(0, slots * most_rank, most_rank):
            both = (emitter.address(table) + row * row_stride(table) for table in (downs, ups))
            words += [*both, most_rank]
    blocks = -(-most_rank // add_lora.RANKS_PER_ITEM)
    h_stride = 4 * add_lora.RANKS_PER_ITEM * blocks
    target, threads = emitter.context.target, emitter.context.threads
    shared = {"which": emitter.address(which), "table": emitter.context.store_words(words), "h_stride": h_stride}
    shared["h"] = emitter.shared_scratch("lora", max_extent(tokens) * h_stride)
    fields = shared | {"x": emitter.address(x), "x_stride": row_stride(x), "a_stride": row_stride(x), "blocks": blocks}
    fields |= {"vectors": emitter.vectors(require_fixed(width)), "width": require_fixed(width)}
    cell, alone = extent_cell(tokens), max_extent(tokens) == 1
    emitter.emit(
        add_lora.lora_down(target), fields, cell, factor=blocks, grain=-(-blocks // threads) if alone else blocks
    )
    pieces = -(-require_fixed(out) // (add_lora.VECTORS_PER_ITEM * target.lanes))
    fields = shared | {
        "y": emitter.address(y),
        "out": emitter.address(call.results[0]),
        "stride": row_stride(y),
        "pieces": pieces,
    }
    emitter.emit(
        add_lora.lora_up(target), fields, cell, factor=pieces, grain=-(-pieces // threads) if alone else pieces
    )
