"""The table of cosines and sines that `ops.rope` reads, and the position stream of each pair in multimodal RoPE."""

from collections.abc import Sequence
from math import ceil, floor, log, pi

import numpy as np

from sporelm.models.rope_scaling import (
    UNSCALED,
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeScaling,
    YarnScaling,
)

STRIDE = 256  # positions that are computed together, by angle sums


def rope_table(context: int, head_dim: int, theta: float, scaling: RopeScaling = UNSCALED) -> np.ndarray:
    """Return the rotary table, float32 [context, head_dim]: the cosines of each position's head_dim / 2 angles, then
    their sines.

    Angle i at position p is p * frequency i (Su et al. 2021); cosines and sines are multiplied by the scaling's
    attention factor. Computed in float64 and rounded once. A row does not depend on the length of the context, except
    with dynamic and longrope scaling (ADR 0008).
    """
    rates, half = frequencies(context, head_dim, theta, scaling), head_dim // 2
    # Angle sums, from cos and sin of 0 .. STRIDE - 1 and of the multiples of STRIDE: a tenth of the time.
    near = np.arange(min(STRIDE, context))[:, None] * rates
    far = np.arange(0, context, STRIDE)[:, None] * rates
    near_cos, near_sin, far_cos, far_sin = np.cos(near), np.sin(near), np.cos(far), np.sin(far)
    far_cos, far_sin = far_cos * scaling.attention, far_sin * scaling.attention
    table = np.empty((context, head_dim), np.float32)
    for cos, sin, start in zip(far_cos, far_sin, range(0, context, STRIDE), strict=True):
        rows = table[start : start + STRIDE]
        count = len(rows)
        rows[:, :half] = near_cos[:count] * cos - near_sin[:count] * sin
        rows[:, half:] = near_sin[:count] * cos + near_cos[:count] * sin
    return table


def frequencies(context: int, head_dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """Return the radians per position, float64 [head_dim / 2]: theta ** (-2 i / head_dim) scaled, for a table of
    `context` rows."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    rates = np.float64(theta) ** -exponents
    match scaling:
        case LinearScaling():
            rates = rates / scaling.factor
        case DynamicNtkScaling():
            rates = _dynamic_base(context, head_dim, theta, scaling) ** -exponents
        case YarnScaling():
            kept = _kept_by_yarn(head_dim, theta, scaling)
            rates = rates / scaling.factor * (1 - kept) + rates * kept
        case Llama3Scaling():
            turns = scaling.original * rates / (2 * pi)  # of each frequency in the original context
            span = scaling.high - scaling.low  # none in Llama 4: frequencies are kept or divided
            kept = np.clip((turns - scaling.low) / span, 0, 1) if span else (turns >= scaling.low).astype(np.float64)
            rates = rates / scaling.factor * (1 - kept) + rates * kept
        case LongRopeScaling():
            rates = rates / np.array(scaling.long if context > scaling.original else scaling.short)
    return rates / np.array(scaling.divisors) if scaling.divisors else rates


def _dynamic_base(context: int, head_dim: int, theta: float, scaling: DynamicNtkScaling) -> np.float64:
    """Return the base for a context: unchanged up to the original, then larger, so that the slowest frequency covers
    more positions."""
    beyond = max(context / scaling.original - 1, 0.0)
    return np.float64(theta) * (1 + scaling.factor * beyond) ** (head_dim / (head_dim - 2))


def _kept_by_yarn(head_dim: int, theta: float, scaling: YarnScaling) -> np.ndarray:
    """Return the share of each frequency that is kept, from 1 for fast ones to 0 for slow ones: float64 [head_dim /
    2]."""

    def number_of(turns: float) -> float:
        """Return the index, as a fraction, of the frequency with this number of turns in the original context."""
        return head_dim * log(scaling.original / (turns * 2 * pi)) / (2 * log(theta))

    first, last = number_of(scaling.beta_fast), number_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    # llama.cpp's minimum width; transformers widens only an empty ramp, by the same number.
    slope = (np.arange(head_dim // 2) - first) / max(last - first, 0.001)
    return (1 - np.clip(slope, 0, 1)) * scaling.extrapolation


def sections(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the stream of each pair: counts[0] pairs of the first stream, then of the second, and so on (Qwen2-VL,
    Wang et al. 2024)."""
    return tuple(stream for stream, count in enumerate(counts) for _ in range(count))


def turns(counts: Sequence[int]) -> tuple[int, ...]:
    """Return the stream of each pair, interleaved; the first stream replaces those with no pairs left (Qwen3-VL)."""
    streams = (pair % len(counts) for pair in range(sum(counts)))
    return tuple(stream if pair < counts[stream] * len(counts) else 0 for pair, stream in enumerate(streams))
