"""The parameters of a model: names, shapes, and how each may be cut for tensor parallelism."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rows:
    """A weight that is cut by output rows, `unit` at a time, for tensor parallelism."""

    unit: int = 1


@dataclass(frozen=True)
class Columns:
    """A weight that is cut by input columns, `unit` at a time; the partial products are summed."""

    unit: int = 1


@dataclass(frozen=True)
class Param:
    """One weight of a model: its name, its shape ([out, in] for matrices), and how it may be cut (None: copied).

    plain    it is no matrix of products but a table of float32 values, a vector for each expert
    """

    name: str
    shape: tuple[int, ...]
    split: Rows | Columns | None = None
    plain: bool = False

    @property
    def is_experts(self) -> bool:
        """Whether it is a stack of matrices of which a token goes through a few; all families name them alike."""
        return "_exps." in self.name


# Weights of products, the only ones that may have their columns in another order: others are looked up by row.
ORDERED = tuple(f"{part}.weight" for part in ("_q", "_k", "_v", "_o", "_gate", "_up", "_down", "output"))


def order_name(weight: str) -> str:
    """What the order of a weight's columns is called, where it has one: "x.weight" -> "x.order"."""
    return f"{weight.removesuffix('.weight')}.order"


def adapters_name(weight: str) -> str:
    """What the matrices of adapters for a weight are called: "x.weight" -> "x.adapters"."""
    return f"{weight.removesuffix('.weight')}.adapters"
