"""Mean pooling of rows."""

from typing import Any

import numpy as np

from sporelm.errors import OpError
from sporelm.ops.argument_checks import check_ints, check_range, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32


def _mean_rows_spec(x: Any, firsts: Any, stops: Any) -> Spec:
    begins, ends = check_ints("firsts", firsts), check_ints("stops", stops)
    require(begins == ends, f"firsts {begins} and stops {ends} must have one shape")
    return Spec((begins.shape[0], check_rows("x", x).shape[1]), F32)


def _check_runs(x: Any, firsts: Any, stops: Any) -> None:
    begins, ends = firsts.numpy(), stops.numpy()
    check_range("firsts", begins, 0, x.shape[0])
    check_range("stops", ends, 1, x.shape[0] + 1)
    for index in np.flatnonzero(begins >= ends):
        raise OpError(f"stops[{index}] is {ends[index]}; it must be more than firsts[{index}], {begins[index]}")


@op(_mean_rows_spec, indices=_check_runs, host=("firsts", "stops"))
def mean_rows(x, firsts, stops):  # x [tokens, width], firsts, stops int32 [texts]
    """Return the mean of the rows firsts[t] : stops[t] of each text, summed in order: float32 [texts, width]."""
    means = [x[first:stop].sum(axis=0) / np.float32(stop - first) for first, stop in zip(firsts, stops, strict=True)]
    return np.array(means, np.float32).reshape(len(firsts), x.shape[1])
