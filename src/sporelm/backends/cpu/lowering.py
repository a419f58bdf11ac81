"""From calls of ops to entries of kernels: which kernel, over which items, with which addresses."""

from collections.abc import Callable
from typing import Any

from sporelm.backends.cpu import adapters, conversions, experts, row_rules, texts
from sporelm.backends.cpu.altup import RULES as ALTUP
from sporelm.backends.cpu.entries import Cell, Emitter, cell_of, most, rows_of, stride_of
from sporelm.backends.cpu.formats import IntegerPanels
from sporelm.backends.cpu.formats.records import RECORDS
from sporelm.backends.cpu.jit import Kernel
from sporelm.backends.cpu.kernels import attention as att
from sporelm.backends.cpu.kernels import elementwise, linear, linear_many, norm, quantize, rope, rows
from sporelm.backends.cpu.kernels.attention_page import Heads
from sporelm.backends.cpu.kernels.attention_tile import attention_tile
from sporelm.backends.cpu.kernels.pages import Pages
from sporelm.backends.cpu.latent import RULES as LATENT
from sporelm.backends.cpu.recurrent import ROW_BY_ROW as OF_RUNS
from sporelm.backends.cpu.recurrent import RULES as RECURRENT
from sporelm.backends.cpu.rwkv import ROW_BY_ROW as OF_RWKV
from sporelm.backends.cpu.rwkv import RULES as RWKV
from sporelm.backends.cpu.selective import RULES as SELECTIVE
from sporelm.backends.cpu.sparse import RULES as SPARSE
from sporelm.backends.cpu.storage import Packed, page_store, row_bytes
from sporelm.errors import BackendError
from sporelm.ops import Call
from sporelm.ops.spec import fixed, spec_of
from sporelm.quant import format_of
from sporelm.tensor.dtype import F32

NO_WINDOW = 1 << 40
# Ops whose item i reads only item i of what came just before: a series of them over the same rows needs no barrier.
ROW_BY_ROW = frozenset(
    {"add", "add_rms_norm", "clamped_swiglu", "combine_experts", "embedding", "quantize_rows", "rms_norm", "silu_mul"}
    | {"count_nonfinite", "dequantize_blocks", "quantize_blocks"}
    | row_rules.RULES.keys()
    | ALTUP.keys()
    | OF_RUNS
    | OF_RWKV
)


class Lowering(Emitter):
    """Lowers calls in order; `entries` grows."""

    def lower(self, call: Call) -> None:
        rule = rule_of(call)
        if rule is None:
            raise BackendError(f"the CPU has no kernel for {call.op.name}; run it with --backend reference")
        self.rowwise = call.op.name in ROW_BY_ROW
        rule(self, call)


def _packed(weight: Any) -> Packed:
    if not isinstance(weight.storage, Packed):
        raise BackendError(f"weight {weight} was not packed for the CPU; use pack()")
    return weight.storage


def _rms_norm(low: Lowering, call: Call) -> None:
    x, weight = call.args
    if spec_of(weight).shape != spec_of(x).shape[1:]:
        return row_rules.norm_of_heads(low, call)
    _norm(low, call, norm.rms_norm(low.places.target), x, weight, {})


def _add_rms_norm(low: Lowering, call: Call) -> None:
    x, residual, weight = call.args
    more = {"residual": low.at(residual), "total": low.at(call.results[1])}
    _norm(low, call, norm.add_rms_norm(low.places.target), x, weight, more)


def _norm(low: Lowering, call: Call, kernel: Kernel, x: Any, weight: Any, more: dict[str, Any]) -> None:
    tokens, width = spec_of(x).shape
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "weight": low.at(weight)}
    fields |= {"out": low.at(call.results[0])}
    fields |= {"out_stride": stride_of(x), "vectors": low.vectors(fixed(width)), "width": float(fixed(width))}
    fields |= {"eps": float(call.options["eps"])} | more
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _quantize_rows(low: Lowering, call: Call) -> None:
    (x,) = call.args
    tokens, each, width = rows_of(x)
    kind = spec_of(call.results[0]).dtype
    stride = row_bytes(width, kind)
    fields = {"x": low.at(x), "x_stride": stride_of(x), "out": low.at(call.results[0]), "out_stride": stride}
    fields |= {"blocks": width // kind.values, "padded": stride // RECORDS[kind.name]}
    kernel = quantize.quantize_rows(low.places.target, kind.name)
    low.emit(kernel, fields, cell_of(tokens), factor=each, grain=low.row_grain(tokens, each))


def _linear(low: Lowering, call: Call) -> None:
    x, weight, *bias = call.args
    _product(low, x, [weight], [b for b in bias if b is not None], call.results)


def _linear_group(low: Lowering, call: Call) -> None:
    x, weights, *biases = call.args
    given = list(biases[0]) if biases else []
    _product(low, x, list(weights), given if any(b is not None for b in given) else [], call.results)


def _linear_gated(low: Lowering, call: Call) -> None:
    x, gate, up = call.args
    _product(low, x, [gate, up], [], call.results, gate=call.options.get("kind", "silu"))


def _product(low: Lowering, x: Any, weights: list[Any], biases: list[Any], outs: Any, *, gate: str = "") -> None:
    """A product in up to three ways, of which the step's number of rows picks one."""
    packed = [_packed(weight) for weight in weights]
    tokens, width = spec_of(x).shape
    target, kind = low.places.target, packed[0].kind
    if spec_of(x).dtype.name != (kind.activation if isinstance(kind, IntegerPanels) else F32.name):
        raise BackendError(f"weights in {kind.name} panels do not multiply {spec_of(x)}; apply the rule quantize_rows")
    gated, shape = bool(gate), linear.Shape(kind, len(weights), bool(biases), gate)
    cell = cell_of(tokens)
    fields: dict[str, Any] = {"x": low.at(x), "x_stride": stride_of(x), "width": fixed(width), "tokens": cell}
    fields["panel_bytes"] = packed[0].panel_bytes
    for s, weight in enumerate(packed):
        out = outs[0] if gated else outs[s]
        fields |= {f"weight{s}": weight.address, f"out{s}": low.at(out), f"panels{s}": weight.panels}
        fields[f"out_stride{s}"] = stride_of(out)
        if biases:
            none = biases[s] is None  # one of a group without a bias gets zeros
            fields[f"bias{s}"] = low.places.reserve(4 * target.lanes * weight.panels) if none else low.at(biases[s])
    panels = [weight.panels for weight in packed]
    single = Cell("1", 1)
    total = panels[0] if gated else sum(panels)
    grain = max(1, total // (4 * low.places.threads))
    few, high = target.tiles.few_tokens_of(kind), most(tokens)
    one, several, many = (
        linear.linear_one(target, shape),
        linear.linear_few(target, shape),
        linear_many.linear_many(target, shape),
    )
    if high == 1 or cell.name == "rows":
        low.emit(one, fields, single, factor=total, grain=grain, guard=(cell, 0, 1))
    if high > 1 and (high <= few or cell.constant is None):  # of a known number one kernel is made
        least = 2 if cell.name == "rows" else 1
        low.emit(several, fields, single, factor=total, grain=grain, guard=(cell, least, min(few, high)))
    if high > few:
        tiles, blocks = linear_many.items(shape, target, panels), Cell(f"{cell.name} blocks", cell.constant)
        low.emit(many, fields, blocks, factor=tiles, guard=(cell, few + 1, high))


def _rope(low: Lowering, call: Call) -> None:
    x, positions, table = call.args
    turn, fields = _turn(low, call, positions, table)
    tokens, width = spec_of(x).shape
    heads = fixed(width) // turn.head_dim
    fields |= {"x": low.at(x), "out": low.at(call.results[0]), "stride": stride_of(x), "heads": heads}
    low.emit(rope.rope(low.places.target, turn), fields, cell_of(tokens), factor=heads, grain=heads)


def _turn(low: Lowering, call: Call, positions: Any, table: Any) -> tuple[rope.Turn, dict[str, Any]]:
    """What rotary kernels are specialised on, and their fields."""
    options = call.options
    turn = rope.Turn(options["head_dim"], spec_of(table).bound[1], options["style"], options.get("streams"))
    fields = {"positions": low.at(positions), "table": low.at(table), "table_stride": stride_of(table)}
    if turn.streams is not None:
        fields["positions_stride"] = stride_of(positions)
    return turn, fields


def _pages(cache: Any) -> tuple[Pages, int]:
    page_store(cache)
    _, _, kv_heads, _, head_dim = cache.shape
    return Pages(head_dim, cache.dtype.name), kv_heads


def _store_kv(low: Lowering, call: Call) -> None:
    keys, values, cache, slots = call.args
    pages, kv_heads = _pages(cache)
    tokens = spec_of(keys).shape[0]
    fields = {"keys": low.at(keys), "values": low.at(values), "stride": stride_of(keys), "kv_heads": kv_heads}
    fields |= {"cache": low.at(cache), "page_bytes": cache.storage.stride, "slots": low.at(slots)}
    low.emit(rope.store_kv(low.places.target, pages), fields, cell_of(tokens), factor=kv_heads, grain=kv_heads)


def _rope_store(low: Lowering, call: Call) -> None:
    q, keys, values, positions, table, cache, slots = call.args
    pages, kv_heads = _pages(cache)
    tokens, width = spec_of(q).shape
    heads = fixed(width) // pages.head_dim
    turn, fields = _turn(low, call, positions, table)
    fields |= {"x": low.at(q), "out": low.at(call.results[0]), "stride": stride_of(q), "heads": heads}
    fields |= {"keys": low.at(keys), "values": low.at(values), "kv_stride": stride_of(keys), "kv_heads": kv_heads}
    fields |= {"cache": low.at(cache), "page_bytes": cache.storage.stride, "slots": low.at(slots)}
    kernel = rope.rope_store(low.places.target, pages, turn)
    every = heads + kv_heads
    # neighbours in a page share cache lines: a thread takes runs of tokens
    grain = -(-every // low.places.threads) if most(tokens) == 1 else every * min(32, max(1, most(tokens) // 16))
    low.emit(kernel, fields, cell_of(tokens), factor=every, grain=grain)


def _attention(low: Lowering, call: Call) -> None:
    """Splits of the positions for the first sequences, as long as each has one row, tiles of rows for the others."""
    q, cache, starts, lengths, table = call.args[:5]
    sinks, slopes = (*call.args[5:], None, None)[:2]
    softcap = call.options.get("softcap")
    pages, kv_heads = _pages(cache)
    sequences, max_pages = spec_of(table).shape
    target, chunk = low.places.target, call.options.get("chunk")
    window = call.options.get("window") or chunk or NO_WINDOW
    number = low.places.attended(starts, lengths)
    splitting, tiled, decoding, merged_rows = (
        Cell(f"{name} {number}") for name in ("splits", "tiles", "decoding", "merging")
    )
    group = fixed(spec_of(q).shape[1]) // (pages.head_dim * kv_heads)
    heads = Heads(pages, group, sinks is not None, softcap is not None, slopes is not None, chunk is not None)
    shared: dict[str, Any] = {"q": low.at(q), "q_stride": stride_of(q)}
    shared |= {"cache": low.at(cache), "page_bytes": cache.storage.stride}
    shared |= {
        "starts": low.at(starts),
        "lengths": low.at(lengths),
        "table": low.at(table),
        "table_stride": stride_of(table),
    }
    shared |= {"scale": float(call.options["scale"]), "window": window, "kv_heads": kv_heads}
    if softcap is not None:
        shared["softcap"] = float(softcap)
    if slopes is not None:
        shared["slopes"] = low.at(slopes)
    out = {"out": low.at(call.results[0]), "out_stride": stride_of(q)}
    if sinks is not None:
        out["sinks"] = low.at(sinks)
    splits = -(-fixed(max_pages) * 64 // att.SPLIT)
    record = 4 * (pages.padded + 16)
    parts = low.places.reserve(most(sequences) * kv_heads * splits * heads.group * record)
    merged = {name: shared[name] for name in ("lengths", "starts", "kv_heads")}
    merged |= {"parts": parts, "splits": splitting}
    splits_guard, merging, tiling = ((cell, 1, 1 << 40) for cell in (decoding, merged_rows, tiled))
    low.emit(
        att.attention_split(target, heads),
        shared | {"splits": splitting, "parts": parts} | out,
        Cell(f"sequences splits {number}"), factor=kv_heads, guard=splits_guard,
    )  # fmt: skip
    low.emit(
        att.attention_merge(target, heads),
        merged | out,
        merged_rows, factor=kv_heads * heads.group, grain=heads.group, guard=merging,
    )  # fmt: skip
    low.emit(
        attention_tile(target, heads),
        shared | {"decoding": decoding, "tiles": tiled} | out,
        tiled, factor=kv_heads, guard=tiling,
    )  # fmt: skip


def _embedding(low: Lowering, call: Call) -> None:
    ids, table = call.args
    packed = _packed(table)
    out = call.results[0]
    fields = {"ids": low.at(ids), "table": packed.address, "panel_bytes": packed.panel_bytes, "out": low.at(out)}
    fields |= {"out_stride": stride_of(out), "groups": packed.kind.groups(packed.width), "width": packed.width}
    fields |= {"padded": low.vectors(packed.width) * low.places.target.lanes, "vocab": packed.rows}
    tokens = spec_of(ids).shape[0]
    kernel = rows.embedding(low.places.target, packed.kind, call.options.get("fills", False))
    low.emit(kernel, fields, cell_of(tokens), grain=low.row_grain(tokens))


def _select_rows(low: Lowering, call: Call) -> None:
    x, wanted = call.args
    fields = {"x": low.at(x), "rows": low.at(wanted), "out": low.at(call.results[0]), "stride": stride_of(x)}
    fields["vectors"] = low.vectors(fixed(spec_of(x).shape[1]))
    count = spec_of(wanted).shape[0]
    low.emit(rows.select_rows(low.places.target), fields, cell_of(count), grain=low.row_grain(count))


def _select_columns(low: Lowering, call: Call) -> None:
    x, columns = call.args
    out = call.results[0]
    count, width = spec_of(x).shape[0], fixed(spec_of(columns).shape[0])
    fields = {"x": low.at(x), "x_stride": stride_of(x), "columns": low.at(columns), "out": low.at(out)}
    fields |= {"out_stride": stride_of(out), "width": width}
    fields |= {"padded": low.vectors(width) * low.places.target.lanes}
    low.emit(rows.select_columns(low.places.target), fields, cell_of(count), grain=low.row_grain(count))


def _argmax(low: Lowering, call: Call) -> None:
    (logits,) = call.args
    count, vocab = spec_of(logits).shape
    fields = {"x": low.at(logits), "stride": stride_of(logits), "vocab": fixed(vocab), "out": low.at(call.results[0])}
    low.emit(rows.argmax(low.places.target), fields, cell_of(count))


def _top_k(low: Lowering, call: Call) -> None:
    (logits,) = call.args
    count, vocab = spec_of(logits).shape
    values, ids = call.results
    fields = {"x": low.at(logits), "stride": stride_of(logits), "vocab": fixed(vocab), "k": call.options["k"]}
    fields |= {
        "values": low.at(values),
        "values_stride": stride_of(values),
        "ids": low.at(ids),
        "ids_stride": stride_of(ids),
    }
    low.emit(rows.top_k(low.places.target), fields, cell_of(count))


def rule_of(call: Call) -> Callable[[Lowering, Call], None] | None:
    """What lowers a call; None where there is no kernel for it."""
    if (
        call.op.name in conversions.BY_FORMAT
        and format_of(call.options["format"]).name not in conversions.BY_FORMAT[call.op.name]
    ):
        return None
    return RULES.get(call.op.name)


RULES: dict[str, Callable[[Lowering, Call], None]] = {
    "add": row_rules.each_element(elementwise.add),
    "add_lora": adapters.add_lora,
    "silu_mul": row_rules.each_element(elementwise.silu_mul),
    "clamped_swiglu": row_rules.each_element(elementwise.clamped_swiglu),
    "rms_norm": _rms_norm,
    "add_rms_norm": _add_rms_norm,
    "quantize_rows": _quantize_rows,
    "linear": _linear,
    "linear_group": _linear_group,
    "linear_silu_mul": _linear_gated,
    "linear_activate_mul": _linear_gated,
    "route": experts.route,
    "part_idle": experts.part_idle,
    "linear_experts": experts.linear_experts,
    "linear_experts_silu_mul": experts.linear_experts_silu_mul,
    "combine_experts": experts.combine_experts,
    "rope": _rope,
    "store_kv": _store_kv,
    "rope_store": _rope_store,
    **LATENT,
    "attention": _attention,
    "apart_attention": texts.apart_attention,
    "text_attention": texts.text_attention,
    "mean_rows": texts.mean_rows,
    "count_nonfinite": conversions.count_nonfinite,
    "dequantize_blocks": conversions.dequantize_blocks,
    "quantize_blocks": conversions.quantize_blocks,
    "embedding": _embedding,
    "select_columns": _select_columns,
    "select_rows": _select_rows,
    "argmax": _argmax,
    "top_k": _top_k,
    **row_rules.RULES,
    **ALTUP,
    **RECURRENT,
    **RWKV,
    **SELECTIVE,
    **SPARSE,
}
