"""Activation functions, alone and as gates, and what else is done to each element by itself: scales, caps, limits."""

from math import erf, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.ops.arguments import plain, vector, wide
from sporelm.ops.elementwise import like_both
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec, fixed, spec_of
from sporelm.tensor.dtype import F32

KINDS = ("gelu", "gelu_tanh", "gelu_quick", "linear", "relu", "relu_squared", "sigmoid", "silu", "softplus")
_erf: Any = np.frompyfunc(erf, 1, 1)


def known_kind(kind: str) -> None:
    """Raise OpError for what is no activation function."""
    require(kind in KINDS, f"activation {kind!r} must be one of {', '.join(KINDS)}")


def _activated(x: Any, *, kind: str) -> Spec:
    known_kind(kind)
    return wide("x", x)


def _gated(gate: Any, up: Any, *, kind: str) -> Spec:
    known_kind(kind)
    return like_both(gate, up)


def _scaled(x: Any, *, factor: float) -> Spec:
    require(bool(np.isfinite(factor)), f"factor {factor} must be finite")
    return wide("x", x)


def _scaled_by(x: Any, factor: Any) -> Spec:
    given = vector("factor", factor)
    require(given.shape == (1,), f"factor {given} must be one number")
    return wide("x", x)


def _capped(x: Any, *, cap: float) -> Spec:
    require(0 < cap < np.inf, f"cap {cap} must be positive")
    return wide("x", x)


def _clipped(x: Any, *, limit: float) -> Spec:
    require(0 < limit < np.inf, f"limit {limit} must be positive")
    return wide("x", x)


def _learned(x: Any, alpha_p: Any, alpha_n: Any, beta: Any, eps: Any, *, layer: int) -> Spec:
    for name, given in (("alpha_p", alpha_p), ("alpha_n", alpha_n), ("beta", beta), ("eps", eps)):
        found = plain(name, given, F32, 2 if len(spec_of(given).shape) == 2 else 1)
        require(found.shape[1:] in ((), (1,)), f"{name} {found} must have one number a layer")
        require(0 <= layer < fixed(found.shape[0]), f"layer {layer} must be one of those of {name} {found}")
    return wide("x", x)


def activated(x: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    """The function `kind` of each value, in float64."""
    exact = x.astype(np.float64)
    with np.errstate(over="ignore"):
        if kind == "gelu":
            exact = exact / 2 * (1 + _erf(exact / sqrt(2)).astype(np.float64))
        elif kind == "gelu_tanh":
            exact = exact / 2 * (1 + np.tanh(sqrt(2 / pi) * (exact + 0.044715 * exact**3)))
        elif kind == "gelu_quick":
            exact = exact / (1 + np.exp(-1.702 * exact))
        elif kind == "linear":
            return x.copy()
        elif kind == "sigmoid":
            exact = 1 / (1 + np.exp(-exact))
        elif kind == "silu":
            exact = exact / (1 + np.exp(-exact))
        elif kind == "softplus":
            exact = np.logaddexp(exact, 0)
        else:
            exact = np.maximum(exact, 0) ** (2 if kind == "relu_squared" else 1)
    return exact.astype(np.float32)


@op(_activated)
def activate(x, *, kind):  # x [tokens, width]
    """An activation function of each value.

    gelu           x times the normal distribution up to x (Hendrycks, Gimpel 2016)
    gelu_tanh      the same by a tanh (GPT-2's, Gemma's)
    gelu_quick     x * sigmoid(1.702 x)
    relu, relu_squared (Primer, So et al. 2021), sigmoid, silu
    softplus       log(1 + exp(x)) (Dugas et al. 2001; gates of Laguna)
    linear         x itself, for gates that multiply as they are
    """
    return activated(x, kind)


@op(_gated)
def activate_mul(gate, up, *, kind):  # gate, up [tokens, width]
    """activate(gate) * up (GLU variants, Shazeer 2020)."""
    return activated(gate, kind) * up


@op(_scaled)
def scale(x, *, factor):  # x [tokens, width]
    """x times a number."""
    return x * np.float32(factor)


@op(_scaled_by)
def scale_by(x, factor):  # x [tokens, width], factor [1]
    """x times a number that a tensor holds (Gemma 4's layers)."""
    return x * factor


@op(_clipped)
def clip(x, *, limit):  # x [tokens, width]
    """Values below -limit and above limit become those (queries, keys and values of OLMo, MPT and DBRX)."""
    return np.clip(x, np.float32(-limit), np.float32(limit))


@op(_capped)
def softcap(x, *, cap):  # x [tokens, width]
    """cap * tanh(x / cap): values between -cap and cap (Gemma 2)."""
    return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)


@op(_learned)
def xielu(x, alpha_p, alpha_n, beta, eps, *, layer):  # x [tokens, width], the others [layers] or [layers, 1]
    """xIELU with the learned numbers of a layer (Huang, Schlag 2024; Apertus).

    softplus(alpha_p) x^2 + beta x where x > 0, elsewhere (beta + softplus(alpha_n)) (e^min(x, eps) - 1 - x) + beta x.
    """
    raw_p, raw_n, slope, least = (float(each.reshape(-1)[layer]) for each in (alpha_p, alpha_n, beta, eps))
    exact = x.astype(np.float64)
    above = np.logaddexp(0, raw_p) * exact**2
    below = (slope + np.logaddexp(0, raw_n)) * (np.expm1(np.minimum(exact, least)) - exact)
    return (np.where(exact > 0, above, below) + slope * exact).astype(np.float32)
