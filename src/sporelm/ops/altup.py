"""Alternating updates (AltUp, Baykal et al. 2023) as Gemma 3n has them: a row is several streams, of which a layer
computes the first and corrects the others by what it found; and the thinning of its feed-forward blocks."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sporelm.ops.arguments import plain, rows, vector
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed
from sporelm.tensor.dtype import F32

LEAST_SQUARE = 1e-5  # below which the mean square of a row does not count


def _streams(name: str, value: Any) -> tuple[Spec, int]:
    """The spec of float32 [tokens, streams, width], and how many streams there are."""
    spec = plain(name, value, F32, 3)
    return spec, fixed(spec.shape[1])


def _like_rows(name: str, value: Any, x: Spec, width: Any) -> None:
    spec = rows(name, value)
    require(spec.shape == (x.shape[0], width), f"{name} {spec} must have {width} columns for each row of {x}")


def _spread(x: Any, others: Sequence[Any]) -> Spec:
    given = rows("x", x)
    for number, other in enumerate(others):
        _like_rows(f"others[{number}]", other, given, given.shape[1])
    return Spec((given.shape[0], 1 + len(others), given.shape[1]), F32)


def _merged(x: Any, others: Sequence[Any]) -> Spec:
    _spread(x, others)
    return rows("x", x)


def _one(x: Any, *, index: int) -> Spec:
    given, count = _streams("x", x)
    require(0 <= index < count, f"index {index} must be one of {count} streams")
    return Spec((given.shape[0], given.shape[2]), F32)


def _predicted(x: Any, coefs: Any) -> Spec:
    given, count = _streams("x", x)
    _like_rows("coefs", coefs, given, count * count)
    return given


def _corrected(predictions: Any, activated: Any, coefs: Any, added: Any) -> Spec:
    given, count = _streams("predictions", predictions)
    _like_rows("activated", activated, given, given.shape[2])
    _like_rows("coefs", coefs, given, count)
    _like_rows("added", added, given, given.shape[2])
    return given


def _first(predictions: Any, activated: Any, coefs: Any, scale: Any) -> Spec:
    given = _corrected(predictions, activated, coefs, activated)
    weight = vector("scale", scale)
    require(weight.shape == given.shape[2:], f"scale {weight} must have one element a column of {given}")
    return rows("activated", activated)


def _thinned(x: Any, *, factor: float) -> Spec:
    require(bool(np.isfinite(factor)), f"factor {factor} must be finite")
    return rows("x", x)


def _matched(x: Any, others: Sequence[Any]) -> list[Any]:
    """The others, each row at the magnitude of x's."""
    target = np.sqrt(np.mean(x * x, axis=-1, keepdims=True))
    found = (np.sqrt(np.maximum(np.mean(y * y, axis=-1, keepdims=True), np.float32(LEAST_SQUARE))) for y in others)
    return [y * (target / each) for y, each in zip(others, found, strict=True)]


@op(_spread)
def spread_streams(x, others):  # x [tokens, width], others: such rows -> [tokens, 1 + others, width]
    """x and the others as streams, the others brought to the root mean square of x, row by row."""
    return np.stack([x, *_matched(x, others)], axis=1)


@op(_merged)
def merge_streams(x, others):  # x [tokens, width], others: such rows
    """The mean of x and of the others, these brought to the root mean square of x, row by row."""
    return np.mean([x, *_matched(x, others)], axis=0, dtype=np.float32)


@op(_one)
def stream(x, *, index):  # x [tokens, streams, width] -> [tokens, width]
    """One of the streams."""
    return np.ascontiguousarray(x[:, index])


@op(_predicted)
def altup_predict(x, coefs):  # x [tokens, streams, width], coefs [tokens, streams * streams]
    """Stream b plus the sum over a of coefs[b * streams + a] times stream a: what a layer starts from."""
    count = x.shape[1]
    return x + np.matmul(coefs.reshape(len(x), count, count), x)


@op(_first)
def altup_first(predictions, activated, coefs, scale):  # as altup_correct, scale [width] -> [tokens, width]
    """The first stream of what `altup_correct` gives, times a learned number for each column."""
    first = predictions[:, 0]
    return (first + (activated - first) * (coefs[:, :1] + 1)) * scale


@op(_corrected)
def altup_correct(predictions, activated, coefs, added):
    """Each stream plus 1 + coefs[b] times what the layer found beyond its prediction; all but the first plus `added`.

    predictions [tokens, streams, width], activated and added [tokens, width], coefs [tokens, streams]
    """
    found = (activated - predictions[:, 0])[:, None]
    corrected = predictions + found * (coefs[..., None] + 1)
    corrected[:, 1:] += added[:, None]
    return corrected


@op(_thinned)
def gaussian_topk(x, *, factor):  # x [tokens, width]
    """What of each value lies above the row's mean plus `factor` times its standard deviation, else zero: with the
    quantile of 0.95 of a normal distribution a twentieth of them is left."""
    mean = np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(np.square(x - mean), axis=-1, keepdims=True))
    return np.maximum(x - (mean + deviation * np.float32(factor)), np.float32(0))
