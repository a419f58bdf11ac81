"""Tensors of files as adapters see them: which of our matrices each holds, by which of its rows.

What is added to a tensor of rows of several matrices is B A with one A for all: each of them gets the rows of B that
are its own, and A.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.weights.names import Param, Stored

FormOf = Callable[[str], Stored]


class Cut(NamedTuple):
    """Rows and columns of a tensor that are those of a matrix, in our order; None: all of them, as they are."""

    rows: NDArray[np.int64] | None = None
    columns: NDArray[np.int64] | None = None

    def of_a(self, a: NDArray[np.float32]) -> NDArray[np.float32]:
        """a [rank, in] of the tensor -> that of the matrix."""
        return a if self.columns is None else a[:, self.columns]

    def of_b(self, b: NDArray[np.float32]) -> NDArray[np.float32]:
        """b [out, rank] of the tensor -> that of the matrix."""
        return b if self.rows is None else b[self.rows]


class Joint(NamedTuple):
    """A tensor [out, width], and by our names without ".weight" what it holds."""

    out: int
    width: int
    parts: Sequence[tuple[str, Cut]]


def joints(
    params: Sequence[Param],
    shapes: Mapping[str, tuple[int, int]],
    form_of: FormOf,
    config: Any,
    paired: Callable[[str, int], NDArray[np.int64] | None],
) -> dict[str, Joint]:
    """The tensors that adapters may add to, by their names without ".weight".

    shapes    of the matrices that they may add to, by our names; all that a tensor holds must be among them
    config    of the model; None: only matrices that are held as they are
    paired    of one of those names and its rows: a further order of them, or None
    """
    held: dict[str, list[tuple[str, Stored]]] = {}
    for param in params:
        if param.name.endswith(".weight"):
            form = form_of(param.name)
            held.setdefault(form.name, []).append((param.name.removesuffix(".weight"), form))
    found = {}
    for tensor, parts in held.items():
        if any(name not in shapes or _reason(form) for name, form in parts):
            continue
        orders = {name: paired(name, shapes[name][0]) for name, _ in parts}
        cuts = [(name, _cut(form, config, orders[name])) for name, form in parts if _known(form, config)]
        out = sum(shapes[name][0] for name, _ in cuts)
        if len(cuts) == len(parts) and _is_whole([cut.rows for _, cut in cuts], out):
            found[tensor.replace("{e}", "0").removesuffix(".weight")] = Joint(out, shapes[cuts[0][0]][1], cuts)
    return found


def why_not(tensor: str, params: Sequence[Param], form_of: FormOf) -> str:
    """Why nothing can be added to a tensor of products; "" for any other."""
    for param in params:
        form = form_of(param.name)
        if any(name.removesuffix(".weight") == tensor for name in form.tensors(param)):
            return _reason(form)
    return ""


def _reason(form: Stored) -> str:
    """Why what is added to a tensor is no sum with a cut of its rows; "" where it is one."""
    if form.each or form.inner:
        return "it is of experts, whose matrices are stacked"
    if form.heads:
        return "its rows make keys and values, which are computed head by head with the matrix turned about"
    if form.parts:
        return "it is one of several matrices that are stacked"
    changed = form.plus or form.log or form.skip or form.unit or form.above or form.between
    return "its values are changed before the product" if changed else ""


def _known(form: Stored, config: Any) -> bool:
    return config is not None or (form.rows is None and form.columns is None)


def _cut(form: Stored, config: Any, order: NDArray[np.int64] | None) -> Cut:
    rows = None if form.rows is None else np.asarray(form.rows(config))
    if order is not None:
        rows = order if rows is None else rows[order]
    return Cut(rows, None if form.columns is None else np.asarray(form.columns(config)))


def _is_whole(rows: Sequence[NDArray[np.int64] | None], out: int) -> bool:
    """Whether each row of a tensor is in one cut."""
    taken = [each for each in rows if each is not None]
    if len(taken) < len(rows):
        return len(rows) == 1
    return np.array_equal(np.sort(np.concatenate(taken)), np.arange(out))
