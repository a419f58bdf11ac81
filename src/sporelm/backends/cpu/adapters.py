"""How low-rank additions are lowered: a table of the adapters, and two kernels that read it."""

from sporelm.backends.cpu.entries import Emitter, cell_of, most, stride_of
from sporelm.backends.cpu.kernels import lora
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of


def add_lora(low: Emitter, call: Call) -> None:
    """x @ a into memory that all these calls share, as each is done with it before the next begins; then onto y."""
    y, x, which, downs, ups = call.args
    (tokens, out), (_, width) = spec_of(y).shape, spec_of(x).shape
    words, most_rank = list[int](), 1
    for down, up in zip(downs, ups, strict=True):
        rank = 0 if down is None else fixed(spec_of(down).shape[0])
        words += [low.at(down), low.at(up), rank] if rank else [0, 0, 0]
        most_rank = max(most_rank, rank)
    blocks = -(-most_rank // lora.RANKS)
    h_stride = 4 * lora.RANKS * blocks
    target, threads = low.places.target, low.places.threads
    shared = {"which": low.at(which), "table": low.places.words(words), "h_stride": h_stride}
    shared["h"] = low.shared("lora", most(tokens) * h_stride)
    fields = shared | {"x": low.at(x), "x_stride": stride_of(x), "a_stride": stride_of(x), "blocks": blocks}
    fields |= {"vectors": low.vectors(fixed(width)), "width": fixed(width)}
    cell, alone = cell_of(tokens), most(tokens) == 1
    low.emit(lora.lora_down(target), fields, cell, factor=blocks, grain=-(-blocks // threads) if alone else blocks)
    pieces = -(-fixed(out) // (lora.VECTORS * target.lanes))
    fields = shared | {"y": low.at(y), "out": low.at(call.results[0]), "stride": stride_of(y), "pieces": pieces}
    low.emit(lora.lora_up(target), fields, cell, factor=pieces, grain=-(-pieces // threads) if alone else pieces)
