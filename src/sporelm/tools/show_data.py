"""The values of one tensor: statistics, exact percentiles and a histogram in bounded memory, and a cut-out of rows."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import ceil, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.load_progress import Progress, count_progress
from sporelm.backends.memory_residency import drop_pages
from sporelm.errors import UsageError
from sporelm.tools.model_files import ModelFiles
from sporelm.tools.show import to_jsonable
from sporelm.tools.tensor_values import TensorValues

PERCENTILES = (0.1, 1.0, 5.0, 25.0, 50.0, 75.0, 95.0, 99.0, 99.9)
MAX_BINS = 1000
NUM_HALVES = 1 << 16  # a float32 is looked at as two halves of 16 bits


@dataclass(frozen=True)
class Statistics:
    """Statistics of all values of a tensor.

    minimum to rms cover the finite values, None without any; deviation divides by their number. A percentile is the
    smallest value that the given percentage of values does not exceed. Percentiles and bins use values rounded to
    float32. bins are counts of equal ranges from minimum to maximum.
    """

    count: int
    nan: int
    infinite: int
    zeros: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    deviation: float | None
    rms: float | None
    percentiles: dict[str, float]
    bins: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """The same as an object for `json.dumps`."""
        return {key: to_jsonable(value) for key, value in (asdict(self) | {"bins": list(self.bins)}).items()}


class _Moments:
    """Sums over the finite values, added up chunk by chunk in float64."""

    def __init__(self) -> None:
        self.count = self.nan = self.infinite = self.zeros = 0
        self.low = np.inf
        self.high = -np.inf
        self.mean = self.squares = 0.0  # squares: of the distances from the mean

    def add(self, values: NDArray[Any]) -> NDArray[Any]:
        """Take a chunk in; returns its finite values."""
        finite = values
        if values.dtype.kind == "f":
            is_finite = np.isfinite(values)
            if not is_finite.all():
                nan = int(np.isnan(values).sum())
                self.nan += nan
                self.infinite += int(values.size - is_finite.sum()) - nan
                finite = values[is_finite]
        if finite.size:
            self.zeros += int(finite.size - np.count_nonzero(finite))
            self.low = min(self.low, finite.min())
            self.high = max(self.high, finite.max())
            wide = finite.astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                mean = wide.mean()
                wide -= mean
                squares = float(np.dot(wide, wide))
                before = self.count
                self.count += finite.size
                # Chan, Golub, LeVeque (1979): means and squares of two parts joined.
                apart = float(mean) - self.mean
                self.mean += apart * finite.size / self.count
                self.squares += squares + apart * apart * before * finite.size / self.count
        return finite


def check_bins(bins: int) -> None:
    """Refuse a number of ranges that cannot be drawn. Raises UsageError."""
    if not 1 <= bins <= MAX_BINS:
        raise UsageError(f"--bins is {bins}: it must be from 1 to {MAX_BINS}")


def compute_statistics(
    source: ModelFiles, name: str, *, bins: int = 20, percentiles: Sequence[float] = PERCENTILES,
    progress: Progress | None = None,
) -> Statistics:  # fmt: skip
    """Statistics of a tensor, read twice and a chunk at a time.

    Raises UsageError for a number of bins below 1 or above 1000, UnsupportedModel for a type that cannot be read.
    """
    check_bins(bins)
    values = TensorValues(source, name)
    moments = _Moments()
    report = count_progress(progress, "reading", 2 * values.size)
    upper = np.zeros(NUM_HALVES, np.int64)
    for chunk in values.chunks():
        upper += np.bincount(_to_ordered_bits(moments.add(chunk)) >> 16, minlength=NUM_HALVES)
        report(chunk.size)
    count = moments.count
    if not count:
        drop_pages(source.raw(name))
        nothing = (None, None, None, None, None)
        return Statistics(values.size, moments.nan, moments.infinite, 0, *nothing, {}, (0,) * bins)
    ranks = {percent: min(count, max(1, ceil(percent / 100 * count))) for percent in percentiles}
    ends = np.cumsum(upper)
    wanted = {int(np.searchsorted(ends, rank)) for rank in ranks.values()}
    low = float(moments.low)
    high = float(moments.high)
    lower, counts = _count_lower_halves(values, wanted, bins, (low, high), report)
    found = {}
    for percent, rank in ranks.items():
        half = int(np.searchsorted(ends, rank))
        before = int(ends[half] - upper[half])
        found[f"{percent:g}"] = _from_ordered_bits(
            (half << 16) | int(np.searchsorted(np.cumsum(lower[half]), rank - before))
        )
    drop_pages(source.raw(name))
    spread = moments.squares / count  # may be infinite or NaN for float64 values near their limit
    return Statistics(
        count=values.size,
        nan=moments.nan,
        infinite=moments.infinite,
        zeros=moments.zeros,
        minimum=low,
        maximum=high,
        mean=moments.mean,
        deviation=float(np.sqrt(spread)),
        rms=sqrt(spread + moments.mean**2) if abs(moments.mean) < 1e150 else abs(moments.mean),
        percentiles=found,
        bins=counts,
    )


def _count_lower_halves(
    values: TensorValues, wanted: set[int], bins: int, limits: tuple[float, float], report: Callable[[int], None]
) -> tuple[dict[int, NDArray[np.int64]], tuple[int, ...]]:
    """The lower halves of those numbers whose upper half is wanted, counted; and the histogram."""
    lower = {half: np.zeros(NUM_HALVES, np.int64) for half in wanted}
    counts = np.zeros(bins, np.int64)
    low, high = limits
    step = high / bins - low / bins  # divided first: the difference itself may be beyond the largest number
    for chunk in values.chunks():
        finite = chunk[np.isfinite(chunk)] if chunk.dtype.kind == "f" else chunk
        order = _to_ordered_bits(finite)
        for half, seen in lower.items():
            seen += np.bincount(order[order >> 16 == half] & 0xFFFF, minlength=NUM_HALVES)
        if step > 0:
            with np.errstate(over="ignore"):
                place = np.clip((finite.astype(np.float64) / step - low / step), 0, bins - 1)
            counts += np.bincount(place.astype(np.int64), minlength=bins)
        else:
            counts[0] += finite.size
        report(chunk.size)
    return lower, tuple(counts.tolist())


def _to_ordered_bits(values: NDArray[Any]) -> NDArray[np.uint32]:
    """Finite values rounded to float32, as whole numbers in the same order (negative zero below zero)."""
    with np.errstate(over="ignore"):
        single = np.clip(values, -3.4028234663852886e38, 3.4028234663852886e38).astype(np.float32)
    bits = single.view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint32)


def _from_ordered_bits(number: int) -> float:
    """The float32 that `_to_ordered_bits` made this number of."""
    bits = number & 0x7FFFFFFF if number >> 31 else ~number & 0xFFFFFFFF
    return float(np.array(bits, np.uint32).view(np.float32)) + 0.0  # + 0.0: no negative zero


@dataclass(frozen=True)
class TensorSlice:
    """Some rows and columns of a tensor that is looked at as [all outer axes, innermost axis].

    values [rows, columns] as `TensorValues.read` gives them; row and column are the indices of the first ones.
    """

    row: int
    column: int
    row_count: int
    column_count: int
    values: NDArray[Any]


def slice_tensor(source: ModelFiles, name: str, rows: slice, columns: slice) -> TensorSlice:
    """A part of a tensor; slices may be open or negative, as in Python, with a step of 1."""
    values = TensorValues(source, name)
    shape = values.entry.shape
    width = shape[-1] if shape else 1
    height = prod(shape[:-1])
    first, last, _ = rows.indices(height)
    left, right, _ = columns.indices(width)
    parts = [values.read(row * width + left, row * width + right) for row in range(first, last) if right > left]
    found = np.stack(parts) if parts else np.empty((0, 0), np.float32)
    return TensorSlice(first, left, height, width, found)
