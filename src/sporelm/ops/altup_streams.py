"""Alternating updates (AltUp, Baykal et al. 2023) as in Gemma 3n, and the sparse activation of its feed-forward blocks.

A row has several streams. A layer computes the first stream, and corrects the others by the difference from its
prediction.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_argument, check_rows, check_vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, require_fixed
from sporelm.tensor.dtype import F32

MIN_MEAN_SQUARE = 1e-5  # lower limit of a row's mean square


def _check_streams(name: str, value: Any) -> tuple[Spec, int]:
    """Return the spec of float32 [tokens, streams, width] and the number of streams. Raise OpError for another
    argument."""
    spec = check_argument(name, value, F32, 3)
    return spec, require_fixed(spec.shape[1])


def _check_columns(name: str, value: Any, x: Spec, width: Any) -> None:
    spec = check_rows(name, value)
    require(spec.shape == (x.shape[0], width), f"{name} {spec} must have {width} columns for each row of {x}")


def _spread_streams_spec(x: Any, others: Sequence[Any]) -> Spec:
    given = check_rows("x", x)
    for number, other in enumerate(others):
        _check_columns(f"others[{number}]", other, given, given.shape[1])
    return Spec((given.shape[0], 1 + len(others), given.shape[1]), F32)


def _merge_streams_spec(x: Any, others: Sequence[Any]) -> Spec:
    _spread_streams_spec(x, others)
    return check_rows("x", x)


def _stream_spec(x: Any, *, index: int) -> Spec:
    given, count = _check_streams("x", x)
    require(0 <= index < count, f"index {index} must be one of {count} streams")
    return Spec((given.shape[0], given.shape[2]), F32)


def _altup_predict_spec(x: Any, coefs: Any) -> Spec:
    given, count = _check_streams("x", x)
    _check_columns("coefs", coefs, given, count * count)
    return given


def _altup_correct_spec(predictions: Any, activated: Any, coefs: Any, added: Any) -> Spec:
    given, count = _check_streams("predictions", predictions)
    _check_columns("activated", activated, given, given.shape[2])
    _check_columns("coefs", coefs, given, count)
    _check_columns("added", added, given, given.shape[2])
    return given


def _altup_first_spec(predictions: Any, activated: Any, coefs: Any, scale: Any) -> Spec:
    given = _altup_correct_spec(predictions, activated, coefs, activated)
    weight = check_vector("scale", scale)
    require(weight.shape == given.shape[2:], f"scale {weight} must have one element a column of {given}")
    return check_rows("activated", activated)


def _gaussian_topk_spec(x: Any, *, factor: float) -> Spec:
    require(bool(np.isfinite(factor)), f"factor {factor} must be finite")
    return check_rows("x", x)


def _match_magnitude(x: Any, others: Sequence[Any]) -> list[Any]:
    """Return the others, each row scaled to the root mean square of x's row."""
    target = np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    found = (np.sqrt(np.maximum(np.mean(y * y, axis=-1, keepdims=True), np.float32(MIN_MEAN_SQUARE))) for y in others)
    return [y * (target / each) for y, each in zip(others, found, strict=True)]


@op(_spread_streams_spec)
def spread_streams(x, others):  # x [tokens, width], others: such rows -> [tokens, 1 + others, width]
    """Stack x and the others as streams. Each row of the others is scaled to the root mean square of x's row."""
    return np.stack([x, *_match_magnitude(x, others)], axis=1)


@op(_merge_streams_spec)
def merge_streams(x, others):  # x [tokens, width], others: such rows
    """Return the mean of x and the others. Each row of the others is scaled to the root mean square of x's row."""
    return np.mean([x, *_match_magnitude(x, others)], axis=0, dtype=np.float32)


@op(_stream_spec)
def stream(x, *, index):  # x [tokens, streams, width] -> [tokens, width]
    """Return one of the streams."""
    return np.ascontiguousarray(x[:, index])


@op(_altup_predict_spec)
def altup_predict(x, coefs):  # x [tokens, streams, width], coefs [tokens, streams * streams]
    """Predict each stream before a layer: stream b plus the sum over a of coefs[b * streams + a] * stream a."""
    count = x.shape[1]
    return x + np.matmul(coefs.reshape(len(x), count, count), x)


@op(_altup_first_spec)
def altup_first(predictions, activated, coefs, scale):  # as altup_correct, scale [width] -> [tokens, width]
    """Return the first stream of `altup_correct`'s result, times a learned number for each column."""
    first = predictions[:, 0]
    return (first + (activated - first) * (coefs[:, :1] + 1)) * scale


@op(_altup_correct_spec)
def altup_correct(predictions, activated, coefs, added):
    """Add (1 + coefs[b]) * (activated - predicted first stream) to each stream b; to all streams but the first also
    `added`.

    predictions [tokens, streams, width], activated and added [tokens, width], coefs [tokens, streams]
    """
    found = (activated - predictions[:, 0])[:, None]
    corrected = predictions + found * (coefs[..., None] + 1)
    corrected[:, 1:] += added[:, None]
    return corrected


@op(_gaussian_topk_spec)
def gaussian_topk(x, *, factor):  # x [tokens, width]
    """Keep the part of each value above the row's mean plus `factor` standard deviations; zero elsewhere.

    With the 0.95 quantile of a normal distribution as factor, about a twentieth of the values remain.
    """
    mean = np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(np.square(x - mean), axis=-1, keepdims=True))
    return np.maximum(x - (mean + deviation * np.float32(factor)), np.float32(0))
