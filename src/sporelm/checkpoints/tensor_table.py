"""Tables of tensors: the names and transforms of a model's parameters in one kind of files.

    TENSORS: TensorTable = {
        "embedding.weight": "model.embed_tokens.weight",
        "output_norm.weight": StoredAs("model.norm.weight", AddConstant(1.0)),
        "layers.{}.ffn_gate.weight": StoredAs("model.layers.{}.mlp.gate_up.weight", TakeRows(GATE_ROWS)),
    }

Keys are templates of parameter names, with "{}" for the number of the layer; "{e}" in a stored name is the number of an
expert. A schema takes the table of a related model and changes rows: `llama.TENSORS | {...}`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sporelm.checkpoints.transforms import Stack, Transform

Step = Transform | Stack


@dataclass(frozen=True, init=False)
class StoredAs:
    """The name of a stored tensor and the transforms from it to the parameter, in that order."""

    name: str
    transforms: tuple[Step, ...]

    def __init__(self, name: str, *transforms: Step) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "transforms", transforms)


# A stored name alone means that the tensor is the parameter, unchanged. A tuple lists alternatives: the first one that
# the file has is used; without a file, or when writing one, the first of all.
TensorRow = str | StoredAs | tuple[str | StoredAs, ...]
TensorTable = dict[str, TensorRow]


def alternatives(row: str | StoredAs | Sequence[str | StoredAs]) -> tuple[StoredAs, ...]:
    """Return all forms that a row of a table lists."""
    rows = (row,) if isinstance(row, str | StoredAs) else row
    return tuple(each if isinstance(each, StoredAs) else StoredAs(each) for each in rows)


def with_alternatives(table: TensorTable, others: TensorTable) -> TensorTable:
    """Return the rows of a table, each with the alternatives that another table has for it."""
    return {
        parameter: (*alternatives(row), *alternatives(others[parameter])) if parameter in others else row
        for parameter, row in table.items()
    }
