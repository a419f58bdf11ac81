"""The sharding rules of ops: which arguments may be sharded, and how their results are placed.

An op without a rule takes whole arguments. Every rule gives the values that the op gives on one rank, up to the order
in which partial sums are added.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sporelm import ops
from sporelm.distributed.placement import OwnedRows, Partial, Rule, Sharded, Sharder, Table, UndecidedCache
from sporelm.distributed.rank_ranges import Ranges, scale_ranges
from sporelm.ops import Op
from sporelm.ops.spec import require_fixed, spec_of

Options = Mapping[str, Any]
RULES: dict[str, Rule] = {}  # by the name of the op


def sharding_rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register the rule of some ops."""

    def register(rule: Rule) -> Rule:
        RULES.update({op.name: rule for op in ops})
        return rule

    return register


def is_sharded(value: Any, dim: int) -> bool:
    """Return whether a value is sharded in this dimension."""
    return isinstance(value, Sharded) and value.dim == dim


def is_aligned(ranges: Ranges, unit: int) -> bool:
    """Return whether all boundaries are multiples of `unit`."""
    return all(start % unit == 0 and stop % unit == 0 for start, stop in ranges)


def call(op: Op, *args: Any, **options: Any) -> Any:
    """Call an op without the absent arguments at the end."""
    given = list(args)
    while given and given[-1] is None:
        given.pop()
    return op(*given, **options)


def _last_ranges(args: Sequence[Any]) -> Ranges | None:
    """Return the ranges of the first argument that is sharded in its last dimension."""
    return next((x.ranges for x in args if isinstance(x, Sharded) and x.dim == len(x.shape) - 1), None)


# Values with the same columns.


@sharding_rule(ops.activate, ops.clip, ops.softcap, ops.scale)
def _keep_columns(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    (x,) = args
    if isinstance(x, Sharded):
        return Sharded(sharder, op(x.local, **options), x.dim, x.ranges)
    if isinstance(x, OwnedRows) and options.get("kind") not in ("sigmoid", "softplus"):  # zeros stay zeros
        return OwnedRows(sharder, op(x.local, **options))
    if isinstance(x, Partial) and op is ops.scale:
        return Partial(sharder, op(x.local, **options))
    return op(sharder.whole(x), **options)


@sharding_rule(ops.add, ops.silu_mul, ops.activate_mul, ops.clamped_swiglu)
def _combine_columns(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    if op is ops.add and all(isinstance(x, Partial) for x in args):
        return Partial(sharder, op(*[x.local for x in args], **options))
    if all(isinstance(x, OwnedRows) for x in args):
        return OwnedRows(sharder, op(*[x.local for x in args], **options))
    ranges = _last_ranges(args)
    if ranges is None:
        return op(*[sharder.whole(x) for x in args], **options)
    if all(isinstance(x, Sharded) and x.ranges == ranges for x in args):
        return Sharded(sharder, op(*[x.local for x in args], **options), args[0].dim, ranges)
    return Sharded(sharder, op(*[sharder.columns(x, ranges) for x in args], **options), 1, ranges)


@sharding_rule(ops.select_rows)
def _select_rows(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    x, wanted = args
    if is_sharded(x, 1):
        return Sharded(sharder, op(x.local, sharder.whole(wanted)), 1, x.ranges)
    if isinstance(x, Partial):
        return Partial(sharder, op(x.local, sharder.whole(wanted)))
    return op(sharder.whole(x), sharder.whole(wanted))


@sharding_rule(ops.select_columns)
def _select_columns(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """Columns that are chosen by a table stay sharded if each rank's are consecutive in the result."""
    x, columns = args
    if is_sharded(x, 1) and isinstance(columns, Table):
        found = _chosen_ranges(columns.array, x.ranges)
        if found is not None:
            start, stop = found[sharder.rank]
            mine = columns.array[start:stop] - x.ranges[sharder.rank][0]
            return sharder.columns_of(op(x.local, sharder.constant(mine.astype(np.int32))), found)
    return op(sharder.whole(x), sharder.whole(columns))


def _chosen_ranges(columns: Any, ranges: Ranges) -> Ranges | None:
    found = []
    for start, stop in ranges:
        (places,) = np.nonzero((columns >= start) & (columns < stop))
        if not len(places) or places[-1] - places[0] + 1 != len(places):
            return None
        found.append((int(places[0]), int(places[-1]) + 1))
    return tuple(found)


@sharding_rule(ops.join_slots)
def _join_slots(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """Columns [tokens, k, width] of a rank stay on it if they are consecutive in the joined row."""
    y, columns = args
    if is_sharded(y, 2) and isinstance(columns, Table):
        width = require_fixed(y.shape[2])
        found = _chosen_ranges(columns.array % width, y.ranges)
        if found is not None:
            start, stop = found[sharder.rank]
            (first, end), chosen = y.ranges[sharder.rank], columns.array[start:stop]
            mine = chosen // width * (end - first) + chosen % width - first
            return sharder.columns_of(op(y.local, sharder.constant(mine.astype(np.int32))), found)
    return op(sharder.whole(y), sharder.whole(columns))


@sharding_rule(ops.cut_slots)
def _cut_slots(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """The columns of a joined row that a rank has stay on it if they are the same consecutive ones of each slot."""
    x, columns = args
    if is_sharded(x, 1) and isinstance(columns, Table):
        chosen = columns.array.reshape(options["k"], -1)
        every = [_chosen_ranges(each, x.ranges) for each in chosen]
        if every[0] is not None and all(each == every[0] for each in every):
            (start, stop), first = every[0][sharder.rank], x.ranges[sharder.rank][0]
            mine = (chosen[:, start:stop] - first).reshape(-1)
            return Sharded(sharder, op(x.local, sharder.constant(mine.astype(np.int32)), **options), 2, every[0])
    return op(sharder.whole(x), sharder.whole(columns), **options)


# Products.


@sharding_rule(ops.linear)
def _linear(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    x, weight, *rest = args
    bias = rest[0] if rest else None
    if is_sharded(weight, 0):
        if isinstance(bias, Sharded):
            bias = bias.local
        elif bias is not None:
            raise AssertionError("the bias of a matrix that is sharded by rows is sharded with it")
        return sharder.columns_of(call(op, sharder.whole(x), weight.local, bias), weight.ranges)
    if is_sharded(weight, 1):
        own = bias if sharder.rank == 0 else None  # added once to the sum
        return Partial(sharder, call(op, sharder.columns(x, weight.ranges), weight.local, sharder.whole(own)))
    return call(op, sharder.whole(x), sharder.whole(weight), sharder.whole(bias))


@sharding_rule(ops.embedding)
def _embedding(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    ids, table = (args[0], args[1])
    if is_sharded(table, 0):
        return Partial(sharder, op(sharder.whole(ids), table.local, first=table.ranges[sharder.rank][0], **options))
    return op(sharder.whole(ids), sharder.whole(table), **options)


@sharding_rule(ops.linear_heads)
def _linear_heads(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    x, weight = args
    if not is_sharded(weight, 0):
        return op(sharder.whole(x), sharder.whole(weight))
    heads, out, _ = map(require_fixed, weight.shape)
    each = require_fixed(x.shape[1]) // heads
    local = op(sharder.columns(x, scale_ranges(weight.ranges, each)), weight.local)
    return sharder.columns_of(local, scale_ranges(weight.ranges, out))


@sharding_rule(ops.linear_experts)
def _linear_experts(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """Experts are divided whole (rows of other ranks' experts are zeros), or each by rows or columns."""
    x, weight, ids, *rest = args
    bias, ids = rest[0] if rest else None, sharder.whole(ids)
    if is_sharded(weight, 0):
        local = [x.local if isinstance(x, OwnedRows) else sharder.whole(x), weight.local, ids]
        local += [] if bias is None else [bias.local]
        return OwnedRows(sharder, op(*local, first=weight.ranges[sharder.rank][0]))
    if is_sharded(weight, 1):
        local = [sharder.whole(x), weight.local, ids, *([] if bias is None else [bias.local])]
        return Sharded(sharder, op(*local), 2, weight.ranges)
    if is_sharded(weight, 2):
        mine = x.local if _last_ranges([x]) == weight.ranges else sharder.columns(x, weight.ranges)
        local = [mine, weight.local, ids]
        if bias is not None and sharder.rank == 0:
            local.append(sharder.whole(bias))
        return Partial(sharder, op(*local))
    return op(sharder.whole(x), sharder.whole(weight), ids, *([] if bias is None else [sharder.whole(bias)]))


@sharding_rule(ops.combine_experts)
def _combine_experts(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    y, weights, *rest = args
    weights = sharder.whole(weights)
    if isinstance(y, Partial | OwnedRows):
        own = [sharder.whole(bias) for bias in rest] if sharder.rank == 0 else []
        return Partial(sharder, op(y.local, weights, *own))
    ranges = _last_ranges([y])
    if ranges is not None and not rest:
        return Sharded(sharder, op(y.local, weights), 1, ranges)
    return op(sharder.whole(y), weights, *[sharder.whole(bias) for bias in rest])


# Heads.


@sharding_rule(ops.rms_norm, ops.layer_norm, ops.group_norm)
def _norm(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """Norms of heads keep the sharding of heads; a norm of rows needs them whole."""
    x, *weights = args
    if is_sharded(x, 1):
        local = _local_norm(sharder, op, x, weights, options)
        if local is not None:
            return Sharded(sharder, op(x.local, *local, **options), 1, x.ranges)
    if any(isinstance(weight, Sharded) for weight in weights):
        (weight,) = weights
        ranges = scale_ranges(weight.ranges, require_fixed(weight.shape[1]))
        return sharder.columns_of(op(sharder.columns(x, ranges), weight.local, **options), ranges)
    return op(sharder.whole(x), *[sharder.whole(weight) for weight in weights], **options)


def _local_norm(sharder: Sharder, op: Op, x: Sharded, weights: Sequence[Any], options: Options) -> list[Any] | None:
    """Return the weights of a norm of this rank's heads; None if the norm needs the columns of other ranks."""
    shapes = [spec_of(weight).shape for weight in weights if weight is not None]
    if not shapes:
        return None
    if len(shapes[0]) == 2:  # a row for each head
        (weight,) = weights
        ranges = scale_ranges(weight.ranges, require_fixed(shapes[0][1])) if isinstance(weight, Sharded) else None
        return [weight.local] if ranges == x.ranges else None
    width = options.get("group") or require_fixed(shapes[0][0])
    if require_fixed(shapes[0][0]) != width or width == x.shape[1] or not is_aligned(x.ranges, width):
        return None
    return [sharder.whole(weight) for weight in weights]


@sharding_rule(ops.rope)
def _rope(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    x, *rest = args
    rest = [sharder.whole(each) for each in rest]
    if is_sharded(x, 1) and is_aligned(x.ranges, options["head_dim"]):
        return Sharded(sharder, op(x.local, *rest, **options), 1, x.ranges)
    return op(sharder.whole(x), *rest, **options)


@sharding_rule(ops.store_kv)
def _store_kv(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    k, v, cache, slots = args
    if isinstance(cache, UndecidedCache) and cache.heads is None:
        head_dim = require_fixed(cache.shape[4])
        if is_sharded(k, 1) and is_sharded(v, 1) and k.ranges == v.ranges and is_aligned(k.ranges, head_dim):
            cache.decide(tuple((start // head_dim, stop // head_dim) for start, stop in k.ranges))
    heads = heads_of_cache(cache)
    if heads is None:
        return op(sharder.whole(k), sharder.whole(v), sharder.whole(cache), sharder.whole(slots))
    ranges = scale_ranges(heads, require_fixed(cache.shape[4]))
    return op(sharder.columns(k, ranges), sharder.columns(v, ranges), cache.local, sharder.whole(slots))


def heads_of_cache(cache: Any) -> Ranges | None:
    """Return the heads of each rank in a cache of pages; None if it is not sharded."""
    if isinstance(cache, UndecidedCache):
        return cache.heads or None
    return cache.ranges if isinstance(cache, Sharded) else None


@sharding_rule(ops.attention)
def _attention(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    q, cache, starts, lengths, pages, *rest = args
    rest += [None] * (3 - len(rest))
    sinks, slopes, spans = rest
    heads = heads_of_cache(cache)
    fixed = [sharder.whole(each) for each in (starts, lengths, pages)]
    if heads is None and is_sharded(q, 1) and spec_of(cache).shape[2] == 1:
        heads = ((0, 1),) * sharder.group.size  # the one KV head of all queries is on every rank
    if heads is None:
        more = [sharder.whole(each) for each in (sinks, slopes, spans)]
        return call(op, sharder.whole(q), sharder.whole(cache), *fixed, *more, **options)
    dim, kv_heads = require_fixed(cache.shape[4]), max(stop for _, stop in heads)
    group = require_fixed(q.shape[1]) // dim // kv_heads
    ranges = query_ranges(q, heads, group, dim)
    numbers = [vector_part(sharder, each, ranges, dim) for each in (sinks, slopes)]
    given = (sharder.columns(q, ranges), getattr(cache, "local", cache), *fixed, *numbers, sharder.whole(spans))
    local = call(op, *given, **options)
    return sharder.columns_of(local, ranges)


def query_ranges(q: Any, heads: Ranges, group: int, dim: int) -> Ranges:
    """Return the columns of queries of each rank: the present ones of q if each rank's belong to its keys, else all
    queries of its keys."""
    if is_sharded(q, 1) and is_aligned(q.ranges, dim):
        fits = True
        for (start, stop), (first, end) in zip(q.ranges, heads, strict=True):
            begin, close = start // dim, stop // dim
            inside = first * group <= begin and close <= end * group
            whole = (begin, close) == (first * group, end * group)
            fits = fits and inside and (whole or end - first == 1)
        if fits:
            return q.ranges
    return scale_ranges(heads, group * dim)


def vector_part(sharder: Sharder, vector: Any, ranges: Ranges, dim: int) -> Any:
    """Return a rank's numbers of a vector with one for each head, whose columns are at `ranges`."""
    if vector is None:
        return None
    start, stop = ranges[sharder.rank]
    if isinstance(vector, Table):
        return sharder.constant(vector.array[start // dim : stop // dim])
    if isinstance(vector, Sharded) and scale_ranges(vector.ranges, dim) == ranges:
        return vector.local
    raise AssertionError("a number for each head is sharded as the heads are")


@sharding_rule(ops.latent_attention)
def _latent_attention(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    """Heads are sharded as their queries of latents are; all ranks keep all latent rows."""
    latent, q, *rest = args
    rest = [sharder.whole(each) for each in rest]
    heads = options["heads"]
    rank_width, width = require_fixed(latent.shape[1]) // heads, require_fixed(q.shape[1]) // heads
    if not is_sharded(latent, 1) or not is_aligned(latent.ranges, rank_width):
        return op(sharder.whole(latent), sharder.whole(q), *rest, **options)
    ranges = tuple((start // rank_width, stop // rank_width) for start, stop in latent.ranges)
    start, stop = ranges[sharder.rank]
    local = op(
        latent.local,
        sharder.columns(q, scale_ranges(ranges, width)),
        *rest,
        **{**options, "heads": stop - start},
    )
    return sharder.columns_of(local, latent.ranges)


# Outputs.


@sharding_rule(ops.argmax)
def _argmax(sharder: Sharder, op: Op, args: Sequence[Any], options: Options) -> Any:
    (logits,) = args
    if is_sharded(logits, 1):
        return ops.argmax_shards(logits.local, group=sharder.group, ranges=logits.ranges)
    return op(sharder.whole(logits))
