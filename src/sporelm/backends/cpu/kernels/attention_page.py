"""Attention of rows of queries to one page: scores, softmax with a running maximum, weighted values."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sporelm.backends.cpu.jit import Builder, Val, f32, i32
from sporelm.backends.cpu.jit.kernel import KernelField, parse_fields
from sporelm.backends.cpu.kernels.kv_pages import BLOCK_VALUES, KvPages
from sporelm.ops.paged_attention import PAGE

MIN_SCORE = -1e30  # below every score, yet finite, so that differences are not NaN


@dataclass(frozen=True)
class AttentionShape:
    """The parameters that an attention kernel is specialised on."""

    pages: KvPages
    group: int  # query heads that share a kv head
    sinks: bool = False  # one more score for each head
    softcap: bool = False  # scores are bounded
    slopes: bool = False  # scores decrease with distance
    chunked: bool = False  # a row sees its own chunk of `window` positions
    biases: bool = False  # each distance has a bias that is added to scores
    disentangled: bool = False  # rows and keys have scores for each distance
    spans: bool = False  # rows of an image see its end

    @property
    def name(self) -> str:
        options = "_sinks" * self.sinks + "_softcap" * self.softcap + "_slopes" * self.slopes
        options += "_chunked" * self.chunked + "_biases" * self.biases + "_disentangled" * self.disentangled
        options += "_spans" * self.spans
        return f"{self.pages.name}_{self.group}{options}"

    def fields(self, more: str) -> tuple[KernelField, ...]:
        text = (
            "q:p q_stride:i cache:p page_bytes:i starts:p lengths:p table:p table_stride:i scale:f window:i kv_heads:i "
        )
        text += "softcap:f " * self.softcap + "slopes:p " * self.slopes + "spans:p " * self.spans
        return parse_fields(text + more + self.sink_field)

    @property
    def sink_field(self) -> str:
        return " sinks:p" * self.sinks

    def sink(self, k: Builder, f: Any, head: Val) -> Val | None:
        """Return the additional score of query head `head`."""
        return k.load(f32, f.sinks, head * 4) if self.sinks else None

    def lowest(self, k: Builder, f: Any, position: Val) -> Val:
        """Return the first position that a row at `position` sees."""
        return position // f.window * f.window if self.chunked else k.max(position + 1 - f.window, 0)

    def span(
        self,
        k: Builder,
        f: Any,
        head: Val,
        base: Val,
        positions: Val,
        place: Callable[[Any], Val],
        last: Callable[[Any], Val] | None = None,
    ) -> "VisibleSpan":
        """Return the visible span of a page for rows of the kv head `head`; `group` consecutive rows belong to one
        token. `place` gives a row's position, `last` the last one that it sees, if that is another."""

        def slope(row: Any) -> Val:
            return k.load(f32, f.slopes, (head * self.group + row % self.group) * 4)

        def below(row: Any) -> Val:
            return self.lowest(k, f, place(row)) - 1

        softcap, slope_of = f.softcap if self.softcap else None, slope if self.slopes else None
        own = below if self.chunked or last is not None else None
        return VisibleSpan(base, positions, f.scale, f.window, last or place, softcap, slope_of, below=own)


class AttentionRows:
    """Running state of some rows in scratch memory: scores [rows][64], then sums [rows][padded], totals, and maxima.

    For pages with scales also the weights of `seen` rows multiplied by them: [seen][groups][64].
    """

    def __init__(self, k: Builder, heads: AttentionShape, scratch: Val, count: int) -> None:
        self.k, self.pages, self.count = k, heads.pages, count
        self.wide = 4 * self.pages.padded
        self.scores = scratch
        self.sums = k.at(self.scores, count * 4 * PAGE)
        self.outs = k.at(self.sums, count * self.wide)
        self.totals = k.at(self.outs, count * self.wide)  # vectors: the running sum of weights, lane by lane
        self.numbers = k.at(self.totals, count * 64)  # f32: maximum, factor of this page, merged maximum, merged sum
        self.scaled = k.at(self.numbers, count * 16)

    @staticmethod
    def nbytes(heads: AttentionShape, count: int, seen: int) -> int:
        """Return the bytes of `count` rows, at most `seen` of them see a page together."""
        return count * (4 * PAGE + 2 * 4 * heads.pages.padded + 64 + 16) + seen * heads.pages.groups * 4 * PAGE

    def number(self, row: int | Val, which: int) -> Val:
        return self.k.at(self.numbers, row * 16 + 4 * which)

    def start_split(self) -> None:
        """Begin a new split."""
        k = self.k
        with k.range(self.count) as row:
            k.store(k.const(f32, MIN_SCORE), self.number(row, 0))
            k.store(k.const(k.vf, 0), self.totals, row * 64)
            for at in range(0, self.wide, 4 * k.lanes):
                k.store(k.const(k.vf, 0), self.sums, row * self.wide + at)

    def reset(self) -> None:
        """Begin a new set of rows."""
        k = self.k
        with k.range(self.count) as row:
            k.store(k.const(f32, MIN_SCORE), self.number(row, 2))
            k.store(k.const(f32, 0), self.number(row, 3))
            for at in range(0, self.wide, 4 * k.lanes):
                k.store(k.const(k.vf, 0), self.outs, row * self.wide + at)

    def end_split(self) -> None:
        """Merge the split into the rows' results."""
        with self.k.range(self.count) as row:
            total = self.k.sum(self.k.load(self.k.vf, self.totals, row * 64))
            peak = self.k.load(f32, self.number(row, 0))
            out, sums = self.k.at(self.outs, row * self.wide), self.k.at(self.sums, row * self.wide)
            merge_split(self.k, self.pages, self.number(row, 2), out, peak, total, sums)


def merge_split(k: Builder, pages: KvPages, numbers: Val, out: Val, peak: Val, total: Val, sums: Val) -> None:
    """Merge one split (its maximum, sum of weights, weighted values) into a row's maximum, sum and values."""
    held_peak, held_total = k.load(f32, numbers), k.load(f32, numbers, 4)
    new = k.fmax(held_peak, peak)
    old_factor, factor = k.exp(held_peak - new), k.exp(peak - new)
    k.store(new, numbers)
    k.store(k.fma(total, factor, held_total * old_factor), numbers, 4)
    old_wide, wide = k.splat(old_factor), k.splat(factor)
    for at in range(0, 4 * pages.padded, 4 * k.lanes):
        k.store(k.fma(k.load(k.vf, sums, at), wide, k.load(k.vf, out, at) * old_wide), out, at)


def write_out(k: Builder, pages: KvPages, peak: Val, total: Val, sums: Val, out: Val, sink: Val | None) -> None:
    """Divide by the sum of weights (relative to the maximum `peak`), and write head_dim columns."""
    inverse = k.const(f32, 1.0) / total
    if sink is not None:
        top = k.fmax(peak, sink)
        factor = k.exp(peak - top)
        inverse = factor / (total * factor + k.exp(sink - top))
    whole = pages.head_dim // k.lanes * k.lanes
    for at in range(0, whole, k.lanes):
        k.store(k.load(k.vf, sums, 4 * at) * k.splat(inverse), out, 4 * at)
    for at in range(whole, pages.head_dim):
        k.store(k.load(f32, sums, 4 * at) * inverse, out, 4 * at)


def add_page(
    k: Builder,
    rows: AttentionRows,
    first: int | Val,
    count: int,
    q: Val,
    q_stride: int,
    keys: Val,
    values: Val,
    page: KvPages,
    span: Any,
    following: Val | None = None,
) -> None:
    """Add one page to rows `first`..`first + count`: scores, softmax, weighted values.

    `q` is the address of row `first`'s query; `page` is the layout of keys and values; `span` gives the scale and the
    visible positions. `following` is the address of the keys read next: values are prefetched while keys are read, and
    the following keys while values are read.
    """
    columns = 4 * k.lanes  # positions whose sums are held in registers at once
    for start in range(0, PAGE, columns):
        parts = [start + k.lanes * c for c in range(4)]
        ahead = values if following is not None and start == 0 else None
        if len(parts) * k.lanes < PAGE:
            with k.when(span.positions > start):  # skipped scores are masked, so their old values do not matter
                _scores(k, rows, first, count, q, q_stride, keys, page, parts, ahead)
            continue
        with k.ir.if_else((span.positions > PAGE // 2).raw) as (whole, half):  # the last page is often half empty
            with whole:
                _scores(k, rows, first, count, q, q_stride, keys, page, parts, ahead)
            with half:
                _scores(k, rows, first, count, q, q_stride, keys, page, parts[:2], ahead)
    for r in range(count):
        _softmax(k, rows, first + r, span)
    weights = k.at(rows.scores, first * (4 * PAGE))
    if page.groups:
        _scale_weights(k, weights, count, values, page, rows.scaled)
        weights = rows.scaled
    _weighted_values(k, rows, first, count, weights, values, page, span, following)


def _scores(
    k: Builder,
    rows: AttentionRows,
    first: int | Val,
    count: int,
    q: Val,
    q_stride: int,
    keys: Val,
    page: KvPages,
    parts: list[int],
    ahead: Val | None,
) -> None:
    """Compute scores of some rows at the positions `parts` (vectors of them) of a page; `ahead` is prefetched."""
    numbers = k.at(keys, page.scales_bytes)
    if ahead is not None:
        _prefetch(k, ahead, page.scales_bytes)
        ahead = k.at(ahead, page.scales_bytes)

    def products(start: int | Val, stop: int | Val) -> list[list[Val]]:
        """Return [row][part]: sums over these columns."""
        sums = [[k.zero(k.vf) for _ in parts] for _ in range(count)]
        with k.range(start, stop) as d:
            line = k.opaque(k.at(numbers, d * (PAGE * page.size)))
            if ahead is not None:
                _prefetch(k, k.at(ahead, d * (PAGE * page.size)), PAGE * page.size)
            at = k.opaque(k.at(q, d * 4))
            x = [k.broadcast(k.vf, at, r * q_stride) for r in range(count)]
            for c, part in enumerate(parts):
                vector = page.load(k, line, part * page.size)
                for r in range(count):
                    sums[r][c].set(k.fma(x[r], vector, sums[r][c].value))
        return [[part.value for part in row] for row in sums]

    if page.groups:
        totals = [[k.zero(k.vf) for _ in parts] for _ in range(count)]
        with k.range(page.groups) as group:
            start = group * BLOCK_VALUES
            found = products(start, k.min(start + BLOCK_VALUES, page.head_dim))
            for c, part in enumerate(parts):
                scale = page.scale(k, keys, group, part)
                for r in range(count):
                    totals[r][c].set(k.fma(found[r][c], scale, totals[r][c].value))
        scores = [[part.value for part in row] for row in totals]
    else:
        scores = products(0, page.head_dim)
    for r in range(count):
        for c, part in enumerate(parts):
            k.store(scores[r][c], k.at(rows.scores, (first + r) * (4 * PAGE)), 4 * part)


def _scale_weights(k: Builder, weights: Val, count: int, values: Val, page: KvPages, scaled: Val) -> None:
    """Multiply weights [count][64] by the scales of values: [count][groups][64]."""
    with k.range(page.groups) as group:
        for at in range(0, PAGE, k.lanes):
            scale = page.scale(k, values, group, at)
            for r in range(count):
                product = k.load(k.vf, weights, r * (4 * PAGE) + 4 * at) * scale
                k.store(product, k.at(scaled, group * (4 * PAGE)), r * (page.groups * 4 * PAGE) + 4 * at)


def _weighted_values(
    k: Builder,
    rows: AttentionRows,
    first: int | Val,
    count: int,
    weights: Val,
    values: Val,
    page: KvPages,
    span: Any,
    following: Val | None,
) -> None:
    """Add the values of a page to the rows' sums, with `weights` [count][64] or [count][groups][64]."""
    lines = page.groups or 1  # lines of weights per row
    numbers = k.at(values, page.scales_bytes)
    if following is not None:
        _prefetch(k, following, page.scales_bytes)
        following = k.at(following, page.scales_bytes)
    columns = 4 * k.lanes  # dimensions whose sums are held in registers at once
    for start in range(0, page.padded, columns):
        parts = [start + k.lanes * c for c in range(4) if start + k.lanes * c < page.padded]
        places = [k.at(rows.sums, (first + r) * rows.wide) for r in range(count)]
        sums = []
        for r in range(count):
            factor = k.splat(k.load(f32, rows.number(first + r, 1)))
            sums.append([k.var(k.load(k.vf, places[r], 4 * part) * factor) for part in parts])
        with k.range(span.positions) as p:
            line = k.opaque(k.at(numbers, p * (page.padded * page.size)))
            if following is not None and start == 0:
                _prefetch(k, k.at(following, p * (page.padded * page.size)), page.padded * page.size)
            at = k.opaque(k.at(weights, p * 4))
            x: dict[tuple[int, int], Val] = {}  # by row and line
            for c, part in enumerate(parts):
                vector = page.load(k, line, part * page.size)
                which = part // BLOCK_VALUES if page.groups else 0
                for r in range(count):
                    if (r, which) not in x:
                        x[r, which] = k.broadcast(k.vf, at, (r * lines + which) * 4 * PAGE)
                    sums[r][c].set(k.fma(x[r, which], vector, sums[r][c].value))
        for r in range(count):
            for c, part in enumerate(parts):
                k.store(sums[r][c].value, places[r], 4 * part)


def _prefetch(k: Builder, start: Val, size: int) -> None:
    """Prefetch to the second-level cache: measured faster than to the first (docs/lab.md, 2026-11-28)."""
    for at in range(0, size, 64):
        k.prefetch(start, at, 2)


@dataclass(frozen=True)
class VisibleSpan:
    """The positions of a page that rows see: low(r) <= p <= high(r). The first is at `base`, `positions` are filled."""

    base: Val  # i64
    positions: Val  # i64, at most 64
    scale: Val  # f32
    window: Val  # i64
    position: Any  # row -> its position, or the last that it sees where this is another, i64
    softcap: Val | None = None  # f32
    slope: Any = None  # row -> the decrease of a score per position, f32
    centre: Any = None  # row -> the position from which scores decrease on both sides, if not `position`
    below: Any = None  # row -> the last position below the visible ones, if not `window` below its own
    bias: Any = None  # row -> the address of the biases that are added to its scores


def _softmax(k: Builder, rows: AttentionRows, row: int | Val, span: VisibleSpan) -> None:
    """Turn the scores of one row into weights, and update its maximum, factor and sum."""
    scores = k.at(rows.scores, row * (4 * PAGE))
    here = span.position(row)
    high = k.splat(k.min(here - span.base, PAGE).trunc(i32))
    below = here - span.window if span.below is None else span.below(row)
    low = k.splat(k.max(below - span.base, -1).trunc(i32))
    biases = None if span.bias is None else span.bias(row)
    lanes = range(0, PAGE, k.lanes)
    seen, values = [], []
    for at in lanes:
        index = k.iota(k.vi) + at
        visible = Val(k, k.ir.and_((index <= high).raw, (index > low).raw))
        seen.append(visible)
        scaled = k.load(k.vf, scores, 4 * at) * k.splat(span.scale)
        if span.softcap is not None:
            bound = k.splat(span.softcap)
            scaled = bound * k.tanh(scaled / bound)
        if span.slope is not None:
            centre = here if span.centre is None else span.centre(row)
            distance = (index - k.splat((centre - span.base).trunc(i32))).to_float()
            distance = distance if span.centre is None else k.const(k.vf, 0) - k.fabs(distance)
            scaled = k.fma(distance, k.splat(span.slope(row)), scaled)
        if biases is not None:
            scaled = scaled + k.load(k.vf, biases, 4 * at)
        values.append(k.select(visible, scaled, k.const(k.vf, MIN_SCORE)))
    top = values[0]
    for value in values[1:]:
        top = k.fmax(value, top)
    held = k.load(f32, rows.number(row, 0))
    peak = k.fmax(k.fold(top, k.fmax), held)
    factor = k.exp(held - peak)
    k.store(peak, rows.number(row, 0))
    k.store(factor, rows.number(row, 1))
    total = k.load(k.vf, rows.totals, row * 64) * k.splat(factor)
    weights = []
    for at, visible, value in zip(lanes, seen, values, strict=True):
        weight = k.select(visible, k.exp(value - k.splat(peak)), k.const(k.vf, 0))
        k.store(weight, scores, 4 * at)
        weights.append(weight)
    while len(weights) > 1:
        weights = [a + b for a, b in zip(weights[::2], weights[1::2], strict=True)]
    k.store(total + weights[0], rows.totals, row * 64)
