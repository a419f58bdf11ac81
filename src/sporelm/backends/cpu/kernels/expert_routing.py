"""Expert routing, and sorting the pairs of rows and experts by expert.

Routing compares scores as integers in the order of floats. Experts that are excluded or already selected have keys
below minus infinity.
"""

from typing import Any, NamedTuple

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.ops.expert_routing import MAX_EXPERTS

SELECTED_KEY, EXCLUDED_KEY = -0x80000000, -0x7FFFFFFF  # less than the key of any float
NO_EXPERT = 0x7FFFFFFF  # greater than any expert

# a group: the expert, the first of its pairs, and their number; i64 each
GROUP_BYTES = 24
EXPERT, START, COUNT = 0, 8, 16


class RoutingShape(NamedTuple):
    """The specialization of `route`: the options of the op."""

    scores: str
    biased: bool  # there is a selection bias
    renormalize: bool
    grouped: bool  # some groups are excluded
    group_score: str
    factored: bool = False  # each expert has a factor

    @property
    def name(self) -> str:
        marks = [
            mark
            for mark, there in (("bias", self.biased), ("sum", self.renormalize), ("factors", self.factored))
            if there
        ]
        return "_".join(["route", self.scores, *marks, *([self.group_score] if self.grouped else [])])

    @property
    def by_logits(self) -> bool:
        """Return whether the order of the logits decides."""
        return not self.biased and not (self.grouped and self.group_score == "sum_of_two")


def route(target: Any, choice: RoutingShape) -> Kernel:
    """Route each row. An item is one token. `vectors` hold its logits; scratch memory holds scores, then keys."""
    nbytes = 4 * (MAX_EXPERTS + 64)

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        keys, groups = k.at(scratch, nbytes), k.at(scratch, 2 * nbytes)
        with k.range(first, last) as token:
            row = k.at(f.x, token * f.x_stride)
            peak, total = _softmax_parts(k, f, row, scratch) if choice.scores == "softmax" else (None, None)
            _write_keys(k, f, choice, row, keys, peak, total)
            if choice.grouped:
                _exclude_groups(k, f, choice, keys, groups)
            weights, ids = k.at(f.weights, token * f.weights_stride), k.at(f.ids, token * f.k * 4)
            with k.range(f.k) as slot:
                expert = _select_greatest(k, f, keys)
                k.store(expert, ids, slot * 4)
                logit = k.load(f32, row, expert.sext(i64) * 4)
                near = choice.scores == "softmax_of_near"
                score = _sparse_mixer_weight(k, f, row, keys, logit) if near else _score(k, choice, logit, peak, total)
                score = _sigmoid(k, logit) if choice.scores == "sigmoid_of_chosen" else score
                k.store(score, weights, slot * 4)
            if choice.scores == "softmax_of_chosen":
                _softmax_in_place(k, f, weights)
            _scale(k, f, choice, weights)
            if choice.factored:
                with k.range(f.k) as slot:
                    factor = k.load(f32, f.factors, k.load(i32, ids, slot * 4).sext(i64) * 4)
                    k.store(k.load(f32, weights, slot * 4) * factor, weights, slot * 4)

    text = "x:p x_stride:i experts:i vectors:i k:i weights:p weights_stride:i ids:p scale:f"
    text += (" bias:p" if choice.biased else "") + (" epsilon:f" if choice.renormalize else "")
    text += " near:f" if choice.scores == "softmax_of_near" else ""
    text += (" groups:i top_groups:i" if choice.grouped else "") + (" factors:p" if choice.factored else "")
    return Kernel(choice.name, parse_fields(text), body, scratch=3 * nbytes)


def _valid_lanes(k: Builder, f: Any, v: Val) -> Val:
    """Return the lanes of a row's vector that are experts."""
    return k.iota(k.vi) < k.splat((f.experts - v * k.lanes).trunc(i32))


def _softmax_parts(k: Builder, f: Any, row: Val, scratch: Val) -> tuple[Val, Val]:
    """Return the greatest logit, and the sum of exp(logit - greatest)."""
    wide = 4 * k.lanes
    peaks, total = k.var(k.const(k.vf, float("-inf"))), k.zero(k.vf)
    with k.range(f.vectors) as v:
        x = k.select(_valid_lanes(k, f, v), k.load(k.vf, row, v * wide), k.const(k.vf, float("-inf")))
        k.store(x, scratch, v * wide)
        peaks.set(k.fmax(x, peaks.value))
    peak = k.fold(peaks.value, k.fmax)
    with k.range(f.vectors) as v:
        powers = k.exp(k.load(k.vf, scratch, v * wide) - k.splat(peak))
        total.set(total.value + k.select(_valid_lanes(k, f, v), powers, k.const(k.vf, 0)))
    return peak, k.sum(total.value)


def _sigmoid(k: Builder, x: Val) -> Val:
    return k.const(x.type, 1.0) / (k.exp(-x) + 1.0)


def _score(k: Builder, choice: RoutingShape, logit: Val, peak: Val | None, total: Val | None) -> Val:
    """Return the score of a logit, or of a vector of logits."""
    if choice.scores == "sigmoid":
        return _sigmoid(k, logit)
    if peak is None or total is None:
        return logit
    if logit.type == k.vf:
        peak, total = k.splat(peak), k.splat(total)
    return k.exp(logit - peak) / total


def _sparse_mixer_weight(k: Builder, f: Any, row: Val, keys: Val, own: Val) -> Val:
    """Return the softmax of one logit, whose expert was just selected, among the nearby logits that are not
    selected yet."""
    wide, peak, limit = 4 * k.lanes, k.splat(own), k.splat(f.near)
    total = k.zero(k.vf)
    with k.range(f.vectors) as v:
        x, key = k.load(k.vf, row, v * wide), k.load(k.vi, keys, v * wide)
        size = k.fabs(x)
        far = (peak - x) / k.select(size < peak, peak, size) > limit
        powers = k.select(far, k.const(k.vf, 0), k.exp(x - peak))
        total.set(total.value + k.select(key.equals(k.const(k.vi, SELECTED_KEY)), k.const(k.vf, 0), powers))
    # The term of the logit itself is 1, or NaN where it is infinite, as in the full sum.
    return k.const(f32, 1) / (k.exp(own - own) + k.sum(total.value))


def order_key(k: Builder, x: Val) -> Val:
    """Return i32 in the order of floats, for scalars or vectors; NaN like minus infinity, -0 like 0."""
    x = k.select(x.is_nan(), k.const(x.type, float("-inf")), x) + 0.0
    bits = x.bits(k.vi if x.type == k.vf else i32)
    return bits ^ (bits.arithmetic_shift(31) & 0x7FFFFFFF)


def _value(k: Builder, key: Val) -> Val:
    """Return the float of a key."""
    return (key ^ (key.arithmetic_shift(31) & 0x7FFFFFFF)).bits(f32)


def _write_keys(
    k: Builder, f: Any, choice: RoutingShape, row: Val, keys: Val, peak: Val | None, total: Val | None
) -> None:
    """Write the keys by which experts are selected."""
    wide = 4 * k.lanes
    with k.range(f.vectors) as v:
        x = k.load(k.vf, row, v * wide)
        if not choice.by_logits:
            x = _score(k, choice, x, peak, total)
        if choice.biased:
            x = x + k.load(k.vf, f.bias, v * wide)
        k.store(k.select(_valid_lanes(k, f, v), order_key(k, x), k.const(k.vi, SELECTED_KEY)), keys, v * wide)


def _exclude_groups(k: Builder, f: Any, choice: RoutingShape, keys: Val, groups: Val) -> None:
    """Exclude all experts except those of the best groups; the groups' keys go to `groups`."""
    members = f.experts // f.groups
    with k.range(f.groups) as group:
        best, second = k.var(k.const(i32, SELECTED_KEY)), k.var(k.const(i32, SELECTED_KEY))
        with k.range(members) as member:
            key = k.load(i32, keys, (group * members + member) * 4)
            second.set(k.max(second.value, k.min(best.value, key)))
            best.set(k.max(best.value, key))
        key = best.value
        if choice.group_score == "sum_of_two":
            key = order_key(k, _value(k, best.value) + _value(k, second.value))
        k.store(key, groups, group * 4)
    with k.range(f.top_groups):
        best, at = k.var(k.const(i32, SELECTED_KEY)), k.var(k.index(0))
        with k.range(f.groups) as group:
            key = k.load(i32, groups, group * 4)
            more = key > best.value
            at.set(k.select(more, group, at.value))
            best.set(k.max(best.value, key))
        k.store(k.const(i32, SELECTED_KEY), groups, at.value * 4)
    with k.range(f.groups) as group:
        first = group * members
        count = k.select(k.load(i32, groups, group * 4).differs(SELECTED_KEY), members, k.index(0))
        with k.range(first, first + count) as member:
            k.store(k.const(i32, EXCLUDED_KEY), keys, member * 4)


def _select_greatest(k: Builder, f: Any, keys: Val) -> Val:
    """Select the expert with the greatest key, the lowest among equals; set its key to SELECTED_KEY."""
    wide = 4 * k.lanes
    best, where = k.var(k.const(k.vi, SELECTED_KEY)), k.var(k.const(k.vi, 0))
    with k.range(f.vectors) as v:
        key = k.load(k.vi, keys, v * wide)
        more = key > best.value
        where.set(k.select(more, k.splat((v * k.lanes).trunc(i32)), where.value))
        best.set(k.select(more, key, best.value))
    peak = k.fold(best.value, k.max)
    hits = k.select(best.value.equals(k.splat(peak)), where.value + k.iota(k.vi), k.const(k.vi, NO_EXPERT))
    expert = k.fold(hits, k.min)
    k.store(k.const(i32, SELECTED_KEY), keys, expert.sext(i64) * 4)
    return expert


def _softmax_in_place(k: Builder, f: Any, weights: Val) -> None:
    """Compute the softmax of a row of `k` numbers in place; one NaN makes the whole row NaN."""
    peak, total = k.var(k.load(f32, weights)), k.zero(f32)
    with k.range(f.k) as slot:
        peak.set(k.fmax(k.load(f32, weights, slot * 4), peak.value))
    with k.range(f.k) as slot:
        power = k.exp(k.load(f32, weights, slot * 4) - peak.value)
        k.store(power, weights, slot * 4)
        total.set(total.value + power)
    with k.range(f.k) as slot:
        k.store(k.load(f32, weights, slot * 4) / total.value, weights, slot * 4)


def _scale(k: Builder, f: Any, choice: RoutingShape, weights: Val) -> None:
    factor = f.scale
    if choice.renormalize:
        total = k.zero(f32)
        with k.range(f.k) as slot:
            total.set(total.value + k.load(f32, weights, slot * 4))
        factor = factor / (total.value + f.epsilon)
    with k.range(f.k) as slot:
        k.store(k.load(f32, weights, slot * 4) * factor, weights, slot * 4)


def valid_expert(k: Builder, f: Any, pair: Val) -> Val:
    """Return the expert of a pair. Clamp an invalid id, which does not occur in a step, so that no memory out of
    bounds is read."""
    expert = k.load(i32, f.ids, pair * 4).sext(i64)
    return k.max(k.min(expert, f.experts - 1), 0)


def local_experts(target: Any) -> Kernel:
    """Write for each pair the number of its expert among `count` ones from `first` on, or -1. An item is one pair."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as pair:
            local = k.load(i32, f.ids, pair * 4).sext(i64) - f.first
            inside = k.select(local < f.experts, local, k.index(-1))
            k.store(k.max(inside, -1).trunc(i32), f.out, pair * 4)

    return Kernel("local_experts", parse_fields("ids:p first:i experts:i out:p"), body)


def group_pairs(target: Any, *, is_part: bool = False) -> Kernel:
    """Sort the pairs by expert, in one item: pair numbers rise within each expert. List the experts with pairs as
    groups and count them. Pairs of a part of the experts may have none, -1: they come last, in no group.

    Fields: ids [tokens, k]; `pairs` i32 for each, `groups` of GROUP_BYTES for each expert and one more, `count` i64.
    """

    def expert_of(k: Builder, f: Any, pair: Val) -> Val:
        if not is_part:
            return valid_expert(k, f, pair)
        expert = k.load(i32, f.ids, pair * 4).sext(i64)
        return k.select(expert < 0, f.experts, k.min(expert, f.experts - 1))

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last):
            pairs = f.tokens * f.k
            with k.range(f.experts + int(is_part)) as expert:
                k.store(k.index(0), scratch, expert * 8)
            with k.range(pairs) as pair:
                counter = expert_of(k, f, pair) * 8
                k.store(k.load(i64, scratch, counter) + 1, scratch, counter)
            start, groups = k.zero(i64), k.zero(i64)
            with k.range(f.experts) as expert:
                number = k.load(i64, scratch, expert * 8)
                group = k.at(f.groups, groups.value * GROUP_BYTES)  # overwritten by the next one if it is empty
                for value, place in ((expert, EXPERT), (start.value, START), (number, COUNT)):
                    k.store(value, group, place)
                k.store(start.value, scratch, expert * 8)
                start.set(start.value + number)
                groups.set(groups.value + k.min(number, 1))
            k.store(groups.value, f.count)
            if is_part:
                k.store(start.value, scratch, f.experts * 8)
            with k.range(pairs) as pair:
                counter = expert_of(k, f, pair) * 8
                at = k.load(i64, scratch, counter)
                k.store(pair.trunc(i32), f.pairs, at * 4)
                k.store(at + 1, scratch, counter)

    text = "ids:p tokens:c k:i experts:i pairs:p groups:p count:p"
    return Kernel(f"group_pairs{'_part' * is_part}", parse_fields(text), body, scratch=8 * (MAX_EXPERTS + 1))
