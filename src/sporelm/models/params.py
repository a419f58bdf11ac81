"""The parameters of a model: names, shapes, and how each may be sharded for tensor parallelism."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """A weight that is sharded by output rows, `unit` at a time, for tensor parallelism.

    Rows are those of the second dimension of experts' matrices, and of the first one of all other weights. With fewer
    units than ranks a unit is divided into `parts`, such as the query heads of a KV head; units of one part are copied.
    """

    unit: int = 1
    parts: int = 1


@dataclass(frozen=True)
class Columns:
    """A weight that is sharded by input columns, `unit` at a time; partial products are summed. `parts` as in Rows."""

    unit: int = 1
    parts: int = 1


@dataclass(frozen=True)
class Param:
    """One weight of a model: its name, its shape ([out, in] for matrices), and how it may be sharded.

    split    None: a matrix that only `linear` reads is sharded by rows, any other weight is copied to every rank

    plain    a float32 table that is read as it is, such as a vector for each expert; not a matrix of products
    """

    name: str
    shape: tuple[int, ...]
    split: Rows | Columns | None = None
    plain: bool = False

    @property
    def is_experts(self) -> bool:
        """Whether it stacks the matrices of a layer's experts; "_exps" is in all their names."""
        return "_exps." in self.name


# Weights of products. Only their columns may be in another order: other weights are looked up by row.
ORDERED = tuple(f"{part}.weight" for part in ("_q", "_k", "_v", "_o", "_gate", "_up", "_down", "output"))


def order_name(weight: str) -> str:
    """Return the name of the column order of a weight that has one: "x.weight" -> "x.order"."""
    return f"{weight.removesuffix('.weight')}.order"


def adapters_name(weight: str) -> str:
    """Return the name of the adapter matrices of a weight: "x.weight" -> "x.adapters"."""
    return f"{weight.removesuffix('.weight')}.adapters"
