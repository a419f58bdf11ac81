"""Values that are divided over the ranks of a group, and the dispatch of ops on them to sharding rules.

An op with a `Sharded`, `Partial` or `Table` argument calls its sharding rule (`sharding_rules.py`), which calls ops on
local arguments. Values without a placement are the same on all ranks. The idea is that of PyTorch's DTensor and of
GSPMD (Xu et al. 2021, arXiv:2105.04663).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.distributed.rank_ranges import Ranges
from sporelm.errors import UnsupportedModel
from sporelm.ops import Op, all_gather, all_reduce, select_columns
from sporelm.ops.collectives import RankGroup
from sporelm.ops.spec import spec_of

Rule = Callable[..., Any]  # (sharder, op, args, options) -> results


class DistributedValue:
    """A value with a placement. `sharder` is that of its group; `local` is the array of this rank."""

    def __init__(self, sharder: "Sharder", local: Any) -> None:
        self.sharder, self.local = sharder, local

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the whole value."""
        return spec_of(self.local).shape

    @property
    def dtype(self) -> Any:
        return self.local.dtype


class Sharded(DistributedValue):
    """A value, a weight or a cache: each rank holds a range of one dimension. Only values can be gathered."""

    def __init__(self, sharder: "Sharder", local: Any, dim: int, ranges: Ranges, *, is_constant: bool = False) -> None:
        super().__init__(sharder, local)
        self.dim, self.ranges, self.is_constant = dim, ranges, is_constant
        self.gathered: Any = None  # the whole value, if it was gathered

    @property
    def shape(self) -> tuple[Any, ...]:
        shape = list(spec_of(self.local).shape)
        shape[self.dim] = max(stop for _, stop in self.ranges)
        return tuple(shape)


class Partial(DistributedValue):
    """A value that is the sum of the arrays of all ranks."""

    def __init__(self, sharder: "Sharder", local: Any) -> None:
        super().__init__(sharder, local)
        self.reduced: Any = None  # the sum, if it was computed


class OwnedRows(DistributedValue):
    """Rows of pairs of a token and an expert [tokens, k, width]: each is on the rank that has the expert, zeros on the
    others."""


class Table(DistributedValue):
    """A constant that is the same on all ranks, with its numbers: rules take parts of them."""

    def __init__(self, sharder: "Sharder", local: Any, read: Callable[[], NDArray[Any]]) -> None:
        """`read` returns the numbers; it is called when a rule first needs them."""
        super().__init__(sharder, local)
        self._read = read

    @cached_property
    def array(self) -> NDArray[Any]:
        """The numbers."""
        return self._read()


class UndecidedCache(DistributedValue):
    """A KV cache while shards are planned: the first op that writes to it decides whether its heads are sharded.

    heads   the range of heads of each rank; (): not sharded
    """

    def __init__(self, sharder: "Sharder", whole: Any, shard: Callable[[Ranges], Any]) -> None:
        """`shard` returns the cache of this rank."""
        super().__init__(sharder, whole)
        self.heads: Ranges | None = None
        self._whole, self._shard = whole, shard

    @property
    def shape(self) -> tuple[Any, ...]:
        return spec_of(self._whole).shape

    def decide(self, heads: Ranges) -> None:
        """Fix the heads of each rank."""
        self.heads, self.local = heads, self._shard(heads)


class Sharder:
    """Applies sharding rules for one rank.

    group     the ranks
    rules     the rule of each op that has one, by the op's name
    constant  returns an array as a constant of the rank's device
    """

    def __init__(self, group: RankGroup, rules: Mapping[str, Rule], constant: Callable[[NDArray[Any]], Any]) -> None:
        self.group, self._rules = group, rules
        self._constant = constant
        self._constants: dict[bytes, Any] = {}

    @property
    def rank(self) -> int:
        return self.group.rank

    def apply(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call an op with distributed arguments by its rule; without a rule on whole arguments."""
        rule = self._rules.get(op.name)
        if rule is not None:
            return rule(self, op, args, options)
        return op(*[self.whole(arg) for arg in args], **options)

    def constant(self, array: NDArray[Any]) -> Any:
        """Return an array as a constant; equal arrays share one."""
        key = array.dtype.str.encode() + repr(array.shape).encode() + array.tobytes()
        if key not in self._constants:
            self._constants[key] = self._constant(np.ascontiguousarray(array))
        return self._constants[key]

    def whole(self, value: Any) -> Any:
        """Return an argument as it is on one rank: gathered, reduced, or as given. Raises UnsupportedModel for a weight
        or a cache that is sharded."""
        if isinstance(value, tuple):
            return tuple(self.whole(each) for each in value)
        if isinstance(value, Sharded):
            return self._gather(value)
        if isinstance(value, Partial):
            if value.reduced is None:
                value.reduced = all_reduce(value.local, group=self.group)
            return value.reduced
        if isinstance(value, UndecidedCache):
            if value.heads:
                raise UnsupportedModel("a KV cache with sharded heads is read by an op that needs all of them")
            value.heads = ()
            return value.local
        if isinstance(value, OwnedRows):
            raise UnsupportedModel("the rows of experts on several ranks are needed before they are combined")
        return value.local if isinstance(value, DistributedValue) else value

    def _gather(self, value: Sharded) -> Any:
        if value.is_constant:
            raise UnsupportedModel(f"a sharded weight {list(value.shape)} is read by an op without a rule for that")
        if value.gathered is None:
            is_last = value.dim == len(value.shape) - 1 == 1
            if not is_last:
                where = f"in dimension {value.dim}"
                raise UnsupportedModel(f"a value {list(value.shape)} that is sharded {where} is needed whole")
            value.gathered = all_gather(value.local, group=self.group, ranges=value.ranges)
        return value.gathered

    def columns(self, value: Any, ranges: Ranges) -> Any:
        """Return this rank's columns of a value [tokens, width]."""
        if isinstance(value, Sharded) and value.dim == 1 and value.ranges == ranges:
            return value.local
        whole = self.whole(value)
        start, stop = ranges[self.rank]
        if (start, stop) == (0, spec_of(whole).shape[1]):
            return whole
        return select_columns(whole, self.constant(np.arange(start, stop, dtype=np.int32)))

    def columns_of(self, local: Any, ranges: Ranges) -> Any:
        """Return local columns as a distributed value; as they are if this and every rank has all of them."""
        if all(each == ranges[0] for each in ranges) and ranges[0][0] == 0:
            return local
        return Sharded(self, local, len(spec_of(local).shape) - 1, ranges)
